"""Pure decisions: what to write, what to remove, where traffic goes. No input or output, no clock of their own."""

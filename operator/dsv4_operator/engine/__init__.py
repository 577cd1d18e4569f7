"""What we know of SGLang, as data with sources, and the commands made from it. Pure: no input or output."""

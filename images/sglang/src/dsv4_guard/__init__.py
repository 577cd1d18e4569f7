"""SGLang plugin: the gates, transfers and index-K formats of DeepSeek-V4, guaranteed or refused.

SGLang only logs a plugin that fails to import, so this module imports nothing and `register` turns every failure
into the end of the process.
"""

__version__ = "0.1.0"
MARK = "dsv4_guard"


def register() -> None:
    """Entry point of the group sglang.srt.plugins. SystemExit when a guarantee cannot be given."""
    try:
        from dsv4_guard.start import start
    except Exception as error:
        raise SystemExit(f"{MARK}: refused: the plugin does not import: {type(error).__name__}: {error}") from error
    start()

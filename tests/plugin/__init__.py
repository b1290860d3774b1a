"""The plugin as users of pytest meet it."""

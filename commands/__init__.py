"""What each command does. The files at the top level take over the signals before they import any of this."""

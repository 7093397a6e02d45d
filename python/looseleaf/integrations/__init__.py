"""Drop-ins for other libraries, one folder or file each. Nothing is imported before it is asked for."""

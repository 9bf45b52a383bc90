"""The window itself: start, menus, status bar."""

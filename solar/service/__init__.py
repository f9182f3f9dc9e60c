"""The service: reads once what several jobs use, and plans anew when jobs come and go."""

"""The service: who is there, what all want, and when to plan anew. It reads once what several jobs use."""

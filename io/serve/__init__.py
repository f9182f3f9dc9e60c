"""How a job and a service speak: the socket, frames, memory that is handed over. io/SERVICE.md says what they say."""

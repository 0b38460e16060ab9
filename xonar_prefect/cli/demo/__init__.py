"""`xonar demo`: a queue of real trainings on a private server, in one command."""

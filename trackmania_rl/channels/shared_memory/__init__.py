"""Both channels between processes of one machine, in memory that all of them see."""

package httpd

// Remember puts a sample into the history of a server.
func (s *Server) Remember(sample Sample) { s.history.add(sample) }

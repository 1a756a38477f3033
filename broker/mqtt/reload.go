package mqtt

import (
	"errors"
	"fmt"
)

// SetLimits changes how many connections there may be: MaxConnections, MaxPerAddress and ConnectRate of o. Those that are there stay.
func (s *Server) SetLimits(o Options) {
	o = o.withDefaults()
	s.mu.Lock()
	s.options.MaxConnections, s.options.MaxPerAddress, s.options.ConnectRate = o.MaxConnections, o.MaxPerAddress, o.ConnectRate
	s.mu.Unlock()
	s.pacer.setRate(o.ConnectRate)
}

// TLSFiles are the files that ReloadTLS reads.
func (s *Server) TLSFiles() (files []string) {
	for _, l := range s.options.Listeners {
		if t := l.TLS; t != nil {
			files = append(files, t.Cert, t.Key, t.CA, t.CRL)
		}
	}
	return files
}

// ReloadTLS reads certificates, keys, authorities and revocation lists of all listeners again. New connections get the new ones;
// clients whose certificate is no longer good are closed, and others notice nothing. Where a file is bad the error names it, and
// its listener keeps all that it had. One call at a time, after Listen.
func (s *Server) ReloadTLS() error {
	s.mu.Lock()
	listeners := s.listeners
	s.mu.Unlock()
	var errs []error
	read := make(map[*tlsFiles]bool)
	for _, l := range listeners {
		if l.tls == nil || read[l.tls] {
			continue
		}
		read[l.tls] = true
		if err := s.loadTLS(l.tls); err != nil {
			errs = append(errs, fmt.Errorf("listener %s: %w", l.options.Address, err))
		}
	}
	s.endRevoked()
	return errors.Join(errs...)
}

func (s *Server) loadTLS(files *tlsFiles) error {
	state, err := files.load()
	if err != nil {
		return err
	}
	for _, note := range state.notes {
		s.logger.Warn("certificates", "warning", note)
	}
	return nil
}

// endRevoked ends the connections of clients whose certificate is not good any more.
func (s *Server) endRevoked() {
	var secured []*conn
	s.mu.Lock()
	for c := range s.conns {
		if c.secured.Load() != nil {
			secured = append(secured, c)
		}
	}
	s.mu.Unlock()
	for _, c := range secured {
		if c.listener.tls.current.Load().check(c.secured.Load().ConnectionState(), true) != nil {
			s.counters.revoked.Add(1)
			c.kill(endRevoked)
		}
	}
}

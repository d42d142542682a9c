package faultnet

import (
	"encoding/binary"
	"fmt"
	"io"
)

// What a client may send ahead of its first frame, as in the server's pqcomm.h.
const (
	encryptionRequest = 80877103 // SSLRequest
	gssRequest        = 80877104 // GSSENCRequest
	maxStartup        = 10_000   // MAX_STARTUP_PACKET_LENGTH
)

// forwardStartup forwards what precedes the first frame: requests for encryption,
// declined here, then the startup message or a cancel request.
func (s *session) forwardStartup(w *wire) error {
	for {
		var word [4]byte
		if _, err := io.ReadFull(w.in, word[:]); err != nil {
			return err
		}
		size, err := bodySize(word[:])
		if err != nil {
			return err
		}
		if size > maxStartup {
			return fmt.Errorf("startup message of %d bytes", size)
		}
		body := make([]byte, size)
		if _, err := io.ReadFull(w.in, body); err != nil {
			return err
		}
		code := uint32(0)
		if len(body) >= 4 {
			code = binary.BigEndian.Uint32(body)
		}
		if code == encryptionRequest || code == gssRequest {
			if _, err := s.client.Write([]byte{'N'}); err != nil {
				return err
			}
			continue
		}
		s.conversation.login(body)
		if err := w.pass(); err != nil {
			return err
		}
		if _, err := w.out.Write(append(word[:], body...)); err != nil {
			return err
		}
		return w.out.Flush()
	}
}

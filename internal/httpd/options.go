package httpd

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Options of a server.
type Options struct {
	// Address is HOST:PORT, or :PORT for the loopback address. Port 0 takes a free one.
	Address string
	// Token, unless empty, is what a request has to bring as "Authorization: Bearer
	// TOKEN", but for /healthz, /readyz and the empty page. See [CheckToken].
	Token string
	// Log takes what goes wrong with single requests; nil is the standard logger.
	Log *log.Logger
}

// address is where to listen.
func (o *Options) address() (string, error) {
	host, port, err := net.SplitHostPort(o.Address)
	if err != nil {
		return "", fmt.Errorf("%q is not an address such as :8432, 127.0.0.1:8432 or [::1]:8432", o.Address)
	}
	if number, err := strconv.Atoi(port); err != nil || number < 0 || number > 65535 {
		return "", fmt.Errorf("%q in %q is not a port from 0 to 65535", port, o.Address)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// leastToken is the length from which on nobody tries all tokens.
const leastToken = 16

// CheckToken reports what keeps a text from being a token that a header can carry and
// nobody guesses. It does not repeat the text.
func CheckToken(token string) error {
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("a token is one line of visible ASCII characters without spaces")
	}
	if len(token) < leastToken {
		return fmt.Errorf("a token of fewer than %d characters can be guessed: make one with `openssl rand -hex 16`", leastToken)
	}
	return nil
}

// loopback tells whether only this machine reaches an address.
func loopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// plainHost tells whether a Host header has an address, or localhost, in it. A page of
// somebody else that the user's browser has open reaches the loopback address under a
// name of its own (DNS rebinding), and never under these.
func plainHost(header string) bool {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return strings.EqualFold(host, "localhost")
}

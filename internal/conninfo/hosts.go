package conninfo

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// passwordOfEachHost looks a password up for each of several hosts, as libpq does:
// pgconn takes for all of them what the password file has for the first. What pgconn
// finds for a host alone is what counts.
func passwordOfEachHost(config *pgx.ConnConfig, text string) error {
	type place struct {
		host string
		port uint16
	}
	passwords := map[place]string{{config.Host, config.Port}: config.Password}
	for _, fallback := range config.Fallbacks {
		at := place{fallback.Host, fallback.Port}
		if _, known := passwords[at]; known {
			continue // the same one without TLS
		}
		alone, err := pgx.ParseConfig(with(with(text, "host", at.host), "port", strconv.Itoa(int(at.port))))
		if err != nil {
			return err
		}
		passwords[at] = alone.Password
	}
	if len(passwords) == 1 {
		return nil
	}
	var mu sync.Mutex
	byAddress := make(map[string]string)
	remember := func(host, address string) {
		mu.Lock()
		defer mu.Unlock()
		for at, password := range passwords {
			if at.host != host {
				continue
			}
			key := net.JoinHostPort(address, strconv.Itoa(int(at.port)))
			if _, known := byAddress[key]; !known { // two names of one server: the first counts
				byAddress[key] = password
			}
		}
	}
	lookup := config.LookupFunc
	config.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		addresses, err := lookup(ctx, host)
		for _, address := range addresses {
			remember(host, address)
		}
		return addresses, err
	}
	for at, password := range passwords {
		if network, address := pgconn.NetworkAddress(at.host, at.port); network == "unix" {
			byAddress[address] = password
		}
	}
	config.AfterNetConnect = func(_ context.Context, attempt *pgconn.Config, conn net.Conn) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if password, known := byAddress[conn.RemoteAddr().String()]; known {
			attempt.Password = password
		}
		return conn, nil
	}
	return nil
}

// with appends a parameter to a URI or a keyword string. Where a parameter is given
// twice, the last one counts.
func with(text, name, value string) string {
	if !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") {
		return text + " " + name + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
	}
	separator := "?"
	if strings.Contains(text, "?") {
		separator = "&"
	}
	return text + separator + name + "=" + strings.ReplaceAll(url.QueryEscape(value), "+", "%20")
}

package conninfo

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// hostaddrError says what is wrong with hostaddr, and quotes nothing of it.
type hostaddrError string

func (e hostaddrError) Error() string { return "hostaddr " + string(e) }

// place is a server that may be connected to.
type place struct {
	host string
	port uint16
}

// parseHosts is pgx.ParseConfig with what libpq does about hosts and pgconn does not: it
// takes hostaddr, and looks for a password for each of several hosts.
func parseHosts(text string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, err
	}
	given := config.RuntimeParams["hostaddr"]
	if given != "" && len(config.Fallbacks) == 0 && filepath.IsAbs(config.Host) {
		// No host was given, or a directory, which names none: the address stands for it.
		text = with(text, "host", given)
		if config, err = pgx.ParseConfig(text); err != nil {
			return nil, err
		}
	}
	delete(config.RuntimeParams, "hostaddr")
	passwords, err := passwordOfEachHost(config, text)
	if err != nil {
		return nil, err
	}
	addresses := make(map[string]place)
	if given != "" {
		if addresses, err = takeAddresses(config, text, given); err != nil {
			return nil, err
		}
	}
	if len(passwords) > 1 {
		usePasswords(config, passwords, addresses)
	}
	return config, nil
}

// alone is what pgconn makes of one place.
func (p place) alone(text string) (*pgx.ConnConfig, error) {
	return pgx.ParseConfig(with(with(text, "host", p.host), "port", strconv.Itoa(int(p.port))))
}

// takeAddresses has pgconn connect to the addresses of hostaddr. The hosts go on to be the
// names that certificates must have, which are settled by then, and those of the password
// file. It returns where each address leads.
func takeAddresses(config *pgx.ConnConfig, text, given string) (map[string]place, error) {
	first, err := place{config.Host, config.Port}.alone(text)
	if err != nil {
		return nil, err
	}
	each := 1 + len(first.Fallbacks) // attempts at a host: two, where TLS may be or not
	hosts, ports := []*string{&config.Host}, []uint16{config.Port}
	for _, fallback := range config.Fallbacks {
		hosts, ports = append(hosts, &fallback.Host), append(ports, fallback.Port)
	}
	list := strings.Split(given, ",")
	if len(hosts) != len(list)*each {
		return nil, hostaddrError("has not as many addresses as there are hosts")
	}
	addresses := make(map[string]place)
	for i, host := range hosts {
		text := list[i/each]
		if text == "" {
			continue // the host is looked up
		}
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, hostaddrError("holds something that is no address")
		}
		if filepath.IsAbs(*host) {
			return nil, hostaddrError("goes with names of hosts, and not with a directory among several")
		}
		at := netip.AddrPortFrom(address.Unmap(), ports[i]).String()
		if _, known := addresses[at]; !known {
			addresses[at] = place{*host, ports[i]}
		}
		*host = address.String()
	}
	return addresses, nil
}

// passwordOfEachHost looks a password up for each of several hosts, as libpq does:
// pgconn takes for all of them what the password file has for the first. What pgconn
// finds for a host alone is what counts.
func passwordOfEachHost(config *pgx.ConnConfig, text string) (map[place]string, error) {
	passwords := map[place]string{{config.Host, config.Port}: config.Password}
	for _, fallback := range config.Fallbacks {
		at := place{fallback.Host, fallback.Port}
		if _, known := passwords[at]; known {
			continue // the same one without TLS
		}
		alone, err := at.alone(text)
		if err != nil {
			return nil, err
		}
		passwords[at] = alone.Password
	}
	return passwords, nil
}

// usePasswords gives each connection the password of the place that it has reached.
// addresses are those of hostaddr.
func usePasswords(config *pgx.ConnConfig, passwords map[place]string, addresses map[string]place) {
	var mu sync.Mutex
	byAddress := make(map[string]string)
	for address, at := range addresses {
		byAddress[address] = passwords[at]
	}
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

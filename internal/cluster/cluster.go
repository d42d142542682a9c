package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Host is the address on which every cluster listens.
const Host = "127.0.0.1"

// Options say which server to start and how.
type Options struct {
	Major     int               // the wanted major; 0 is NewestMajor
	ServerDir string            // take the server in this directory, or in its bin, instead of searching; Major 0 takes any
	Dir       string            // must not exist yet; holds data, log and socket and is removed in the end. Empty: a temporary one
	Settings  map[string]string // go to postgresql.conf behind the defaults; one that the major does not know stops the start
	Durable   bool              // leave fsync on: for tests that lose power or kill the server
	Progress  func(string)      // hears in words what takes time; may be nil
}

// Cluster is a PostgreSQL server of ours with its data directory. Its superuser
// is "postgres", connections from this machine need no password, its encoding is
// UTF8 and its locale C. All methods are safe for concurrent use; those that
// start and stop the server wait for each other.
type Cluster struct {
	installation Installation
	account      account
	directory    string
	socket       bool // its path is short enough to exist
	port         int
	releasePort  func()
	guard        *guard

	mu struct {
		sync.Mutex
		server  *postmaster // the last one started; it may have exited
		killed  bool        // it left shared memory behind
		orphans []process   // its children at that moment
		closed  bool
	}
}

// Start starts a new, empty cluster and returns when it accepts connections. ctx
// bounds the start only. The caller must Close the cluster; when this process
// dies before that, the guard does it.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}
	cache, err := openCache(account)
	if err != nil {
		return nil, err
	}
	return start(ctx, options, newFinder(cache, options.Progress), cache.reservePort)
}

func start(ctx context.Context, options Options, f *finder, reserve func(context.Context) (int, func(), error)) (_ *Cluster, err error) {
	var installation Installation
	switch {
	case options.ServerDir != "":
		installation, err = f.explicit(ctx, options.ServerDir, options.Major)
	case options.Major != 0:
		installation, err = f.find(ctx, options.Major)
	default:
		installation, err = f.find(ctx, NewestMajor)
	}
	if err != nil {
		return nil, err
	}
	template, err := f.cache.template(ctx, installation, f.progress)
	if err != nil {
		return nil, err
	}
	directory, err := makeHome(options.Dir, f.cache)
	if err != nil {
		return nil, err
	}

	c := &Cluster{installation: installation, account: f.account, directory: directory, releasePort: func() {}}
	c.socket = len(filepath.Join(directory, ".s.PGSQL.65535")) < maxSocketPath
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	c.guard, err = startGuard(c.account, directory, c.program())
	if err != nil {
		return nil, err
	}
	if err := copyTree(template, c.data(), c.account); err != nil {
		return nil, fmt.Errorf("copy the template of PostgreSQL %s: %w", installation.Version, err)
	}
	if err := renewIdentity(c.data()); err != nil {
		return nil, err
	}
	if err := c.configure(options); err != nil {
		return nil, err
	}
	for range 10 {
		c.releasePort()
		if c.port, c.releasePort, err = reserve(ctx); err != nil {
			c.releasePort = func() {}
			return nil, err
		}
		if err = c.launch(ctx); !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// configure appends the settings to postgresql.conf, where the last line for a
// name counts.
func (c *Cluster) configure(options Options) error {
	settings := defaultSettings(c.installation.Major)
	if options.Durable {
		settings["fsync"] = "on"
	}
	for name, value := range options.Settings {
		settings[name] = value
	}
	path := filepath.Join(c.data(), "postgresql.conf")
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open the server's configuration: %w", err)
	}
	_, err = file.WriteString(formatSettings(settings))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// errPortTaken says that somebody else listens on the cluster's port.
var errPortTaken = errors.New("port is taken")

// launch starts the server on the cluster's port and waits until it accepts
// connections. The caller holds c.mu or is the only one to know c.
func (c *Cluster) launch(ctx context.Context) error {
	before := c.LogSize()
	sockets := ""
	if c.socket {
		sockets = c.directory
	}
	server, err := startPostmaster(c.account, c.program(), c.data(), c.LogFile(),
		"-p", strconv.Itoa(c.port), "-c", "listen_addresses="+Host, "-c", "unix_socket_directories="+sockets)
	if err != nil {
		return err
	}
	c.mu.server = server
	err = server.await(ctx, acceptsConnections)
	if err == nil {
		c.mu.killed = false
		return nil
	}
	said := c.logSince(before)
	if errors.Is(err, errExited) && strings.Contains(said, "could not bind IPv4 address") {
		return fmt.Errorf("start PostgreSQL %s on %s:%d: %w", c.installation.Version, Host, c.port, errPortTaken)
	}
	return fmt.Errorf("start PostgreSQL %s in %s: %w; its log ends with: %s", c.installation.Version, c.directory, err, lastLines(said, 8))
}

// Installation says which server this is and where it came from.
func (c *Cluster) Installation() Installation { return c.installation }

// Major is the server's major version, which is not the wanted one when
// Installation().Origin is Fallback.
func (c *Cluster) Major() int { return c.installation.Major }

// Port is the TCP port on Host. It stays the same when the server is restarted.
func (c *Cluster) Port() int { return c.port }

// Running reports whether the server's process lives.
func (c *Cluster) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.server != nil && c.mu.server.running()
}

// Dir is the directory that holds the cluster, until Close removes it.
func (c *Cluster) Dir() string { return c.directory }

// SocketDir is the directory of the Unix socket, for use as host in a connection
// string; empty when Dir is too long for the path of a socket.
func (c *Cluster) SocketDir() string {
	if !c.socket {
		return ""
	}
	return c.directory
}

// URI returns a connection string for the superuser in a database.
func (c *Cluster) URI(database string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.User("postgres"), Host: Host + ":" + strconv.Itoa(c.port),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}).String()
}

// LogFile is the file to which the server writes its log.
func (c *Cluster) LogFile() string { return filepath.Join(c.directory, "log") }

// Log returns what the server has logged, from byte offset on.
func (c *Cluster) Log(offset int64) (string, error) {
	content, err := os.ReadFile(c.LogFile())
	if err != nil {
		return "", fmt.Errorf("read a server log: %w", err)
	}
	return string(content[min(offset, int64(len(content))):]), nil
}

// LogSize is the offset of what the server will log next.
func (c *Cluster) LogSize() int64 {
	info, err := os.Stat(c.LogFile())
	if err != nil {
		return 0
	}
	return info.Size()
}

func (c *Cluster) logSince(offset int64) string {
	said, err := c.Log(offset)
	if err != nil {
		return err.Error()
	}
	return said
}

func (c *Cluster) data() string    { return filepath.Join(c.directory, "data") }
func (c *Cluster) program() string { return filepath.Join(c.installation.BinDir, "postgres") }

// Close ends the server, removes the directory and gives the port back. A second
// call does nothing.
func (c *Cluster) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil
	}
	c.mu.closed = true
	err := c.end()
	err = errors.Join(err, os.RemoveAll(c.directory))
	if c.guard != nil {
		c.guard.dismiss()
	}
	c.releasePort()
	if err != nil {
		return fmt.Errorf("close the cluster in %s: %w", c.directory, err)
	}
	return nil
}

// end makes sure that nothing of the server is left, neither processes nor
// shared memory. What a killed server leaves in shared memory only another start
// in the same directory clears away, before it begins recovery.
func (c *Cluster) end() error {
	if c.mu.server == nil {
		return nil
	}
	if err := c.stop(Immediate); err != nil {
		return errors.Join(err, c.kill(true))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := c.awaitGone(ctx); err != nil || !c.mu.killed {
		return err
	}
	server, err := startPostmaster(c.account, c.program(), c.data(), c.LogFile(),
		"-p", strconv.Itoa(c.port), "-c", "listen_addresses="+Host, "-c", "unix_socket_directories=")
	if err != nil {
		return err
	}
	c.mu.server = server
	if err := server.await(ctx, func(status string) bool { return status != "" }); err != nil && !errors.Is(err, errExited) {
		return errors.Join(err, c.kill(true))
	}
	return c.stop(Immediate)
}

// Mode is how a server is asked to stop, see "Shutting Down the Server" in the
// PostgreSQL manual.
type Mode int

const (
	Fast      Mode = iota // disconnect clients, roll back, checkpoint
	Immediate             // stop at once; the next start recovers
	Smart                 // wait until the last client leaves
)

func (m Mode) signal() syscall.Signal {
	switch m {
	case Immediate:
		return syscall.SIGQUIT
	case Smart:
		return syscall.SIGTERM
	default:
		return syscall.SIGINT
	}
}

// patience bounds how long Stop waits, longer than the minute after which a
// server gives up a silent standby.
const patience = 90 * time.Second

// Stop stops the server and waits until it is gone. A stopped server is left as
// it is. After an error the server may still be stopping.
func (c *Cluster) Stop(mode Mode) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stop(mode)
}

func (c *Cluster) stop(mode Mode) error {
	server := c.mu.server
	if server == nil || !server.running() {
		return nil
	}
	// The server may exit by itself meanwhile, which is as good.
	if err := server.command.Process.Signal(mode.signal()); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal the server in %s: %w", c.directory, err)
	}
	expired := time.NewTimer(patience)
	defer expired.Stop()
	select {
	case <-server.exited:
		return nil
	case <-expired.C:
		return fmt.Errorf("server in %s did not stop within %s", c.directory, patience)
	}
}

// Restart stops the server in mode Fast if it runs, waits until nothing of it is
// left, and starts it again on the same port and data. It is also how to start
// after Stop and Kill.
func (c *Cluster) Restart(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return fmt.Errorf("restart the cluster in %s: it is closed", c.directory)
	}
	if err := c.stop(Fast); err != nil {
		return err
	}
	if err := c.awaitGone(ctx); err != nil {
		return err
	}
	return c.launch(ctx)
}

// Kill ends all processes of the server with SIGKILL, the postmaster first, and
// waits until they are gone. The data directory is left for crash recovery.
func (c *Cluster) Kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kill(true)
}

// KillPostmaster ends only the postmaster with SIGKILL. Its backends notice when
// they next wait for something: until then they go on, and may still commit.
// AwaitGone waits for them.
func (c *Cluster) KillPostmaster() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kill(false)
}

func (c *Cluster) kill(all bool) error {
	server := c.mu.server
	if server == nil || !server.running() {
		return nil
	}
	// A stopped postmaster forks no more, so the list of its children is complete.
	if err := server.command.Process.Signal(syscall.SIGSTOP); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the postmaster in %s: %w", c.directory, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := poll(ctx, func() bool {
		s, err := readStat(server.pid())
		return err != nil || s.state == 'T' || !server.running()
	})
	if err != nil {
		return fmt.Errorf("wait until the postmaster in %s is stopped: %w", c.directory, err)
	}
	orphans, err := children(server.pid())
	if err != nil {
		return err
	}
	c.mu.killed, c.mu.orphans = true, orphans
	if err := server.command.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill the postmaster in %s: %w", c.directory, err)
	}
	<-server.exited
	if !all {
		return nil
	}
	for _, orphan := range orphans {
		if !orphan.alive() {
			continue
		}
		if err := syscall.Kill(orphan.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill a backend of the server in %s: %w", c.directory, err)
		}
	}
	return c.awaitGone(ctx)
}

// AwaitGone waits until no backend of a killed server lives. Before that the
// cluster cannot start again: it would share memory with the old backends.
func (c *Cluster) AwaitGone(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.awaitGone(ctx)
}

func (c *Cluster) awaitGone(ctx context.Context) error {
	err := poll(ctx, func() bool {
		for _, orphan := range c.mu.orphans {
			if orphan.alive() {
				return false
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("wait for the backends of the killed server in %s: %w", c.directory, err)
	}
	c.mu.orphans = nil
	return nil
}

// poll waits with growing pauses for what nobody announces.
func poll(ctx context.Context, reached func() bool) error {
	for wait := time.Millisecond; !reached(); wait = min(2*wait, 50*time.Millisecond) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	return nil
}

// Detach leaves the server running: Close does nothing any more, and neither does
// the guard when this process ends. Dir then belongs to whoever asked for it.
func (c *Cluster) Detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return
	}
	c.mu.closed = true
	c.guard.dismiss()
	c.releasePort()
}

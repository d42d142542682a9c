package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
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
		orphans []process   // the children that it had when it was killed
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

// reservation picks a port and keeps it until release.
type reservation func(context.Context) (port int, release func(), err error)

func start(ctx context.Context, options Options, f *finder, reserve reservation) (*Cluster, error) {
	installation, err := f.choose(ctx, options)
	if err != nil {
		return nil, err
	}
	template, err := f.cache.template(ctx, installation, f.progress)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(installation, options.Dir, f.cache)
	if err != nil {
		return nil, err
	}
	fill := func(context.Context) error {
		if err := copyTree(template, c.data(), c.account, nil); err != nil {
			return fmt.Errorf("copy the template of PostgreSQL %s: %w", c.installation.Version, err)
		}
		if err := renewIdentity(c.data()); err != nil {
			return err
		}
		return c.configure(defaultSettings(c.installation.Major), options)
	}
	if err := c.create(ctx, fill, reserve); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// newCluster makes the directory, in which there is nothing yet.
func newCluster(i Installation, directory string, cache *cache) (*Cluster, error) {
	directory, err := makeHome(directory, cache)
	if err != nil {
		return nil, err
	}
	return &Cluster{
		installation: i, account: cache.account, directory: directory, releasePort: func() {},
		socket: len(filepath.Join(directory, ".s.PGSQL.65535")) < maxSocketPath,
	}, nil
}

// create fills the empty directory and starts the server. Until it returns nobody
// else knows c, so it takes no lock.
func (c *Cluster) create(ctx context.Context, fill func(context.Context) error, reserve reservation) (err error) {
	if c.guard, err = startGuard(c.account, c.directory, c.program()); err != nil {
		return err
	}
	if err := fill(ctx); err != nil {
		return err
	}
	for attempts := 1; ; attempts++ {
		port, release, err := reserve(ctx)
		if err != nil {
			return err
		}
		c.port, c.releasePort = port, release
		err = c.launch(ctx)
		if !errors.Is(err, errPortTaken) || attempts == 10 {
			return err
		}
		release()
	}
}

// configure appends the settings to postgresql.conf, where the last line for a
// name counts.
func (c *Cluster) configure(settings map[string]string, options Options) error {
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
	return c.running()
}

func (c *Cluster) running() bool { return c.mu.server != nil && c.mu.server.running() }

// PID is the postmaster's process id, or 0 when the server does not run. Its
// backends are its children. It serves to look at them: one who kills them leaves
// Close and Restart in the dark about what is left, where Kill does not.
func (c *Cluster) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running() {
		return 0
	}
	return c.mu.server.pid()
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

func (c *Cluster) data() string    { return filepath.Join(c.directory, "data") }
func (c *Cluster) program() string { return filepath.Join(c.installation.BinDir, "postgres") }

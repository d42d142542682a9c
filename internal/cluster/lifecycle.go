package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// patience bounds the waits that have no context, longer than the minute after
// which a stopping server gives up a silent standby.
const patience = 90 * time.Second

// errPortTaken says that somebody else listens on the cluster's port.
var errPortTaken = errors.New("somebody else took the port")

// execute starts the server's process, which does not listen yet.
func (c *Cluster) execute() error {
	server, err := startPostmaster(c.account, c.program(), c.data(), c.LogFile(),
		"-p", strconv.Itoa(c.port), "-c", "listen_addresses="+Host, "-c", "unix_socket_directories="+c.SocketDir())
	if err != nil {
		return err
	}
	c.mu.server = server
	go func() { // Stop, Kill and Close wait for its end
		server.wait()
		// Somebody may keep no more of the cluster than its URI. Were the garbage
		// collector to close the pipe to the guard, it would end the server.
		runtime.KeepAlive(c.guard)
	}()
	return nil
}

// launch starts the server and waits until it accepts connections.
func (c *Cluster) launch(ctx context.Context) error {
	before := c.LogSize()
	err := c.execute()
	if err == nil {
		err = c.mu.server.await(ctx, acceptsConnections)
	}
	if err == nil {
		return nil
	}
	said, logErr := c.Log(before)
	if errors.Is(err, errExited) && strings.Contains(said, "could not bind IPv4 address") {
		err = errPortTaken
	}
	return errors.Join(fmt.Errorf("start PostgreSQL %s in %s on port %d: %w; the end of its log: %s",
		c.installation.Version, c.directory, c.port, err, lastLines(said, 8)), logErr)
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

// Stop stops the server and waits until it is gone, at most a minute and a half:
// after an error the server may still be stopping. One that does not run is left
// as it is.
func (c *Cluster) Stop(mode Mode) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stop(mode)
}

func (c *Cluster) stop(mode Mode) error {
	if !c.running() {
		return nil
	}
	if err := c.signal(mode.signal()); err != nil {
		return err
	}
	expired := time.NewTimer(patience)
	defer expired.Stop()
	select {
	case <-c.mu.server.exited:
		return nil
	case <-expired.C:
		return fmt.Errorf("server in %s did not stop within %s", c.directory, patience)
	}
}

// signal sends a signal to the postmaster, who may exit by itself meanwhile.
func (c *Cluster) signal(signal syscall.Signal) error {
	err := c.mu.server.command.Process.Signal(signal)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to the server in %s: %w", signal, c.directory, err)
	}
	return nil
}

// Restart stops the server in mode Fast if it runs, waits until nothing of it is
// left, and starts it again on the same port and data. It is also how to start
// after Stop and Kill.
func (c *Cluster) Restart(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return fmt.Errorf("restart the server in %s: the cluster is closed", c.directory)
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
	if !c.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// A stopped postmaster forks no more, so the list of its children is complete.
	if err := c.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := poll(ctx, c.mu.server.stopped); err != nil {
		return fmt.Errorf("wait until the postmaster in %s stands still: %w", c.directory, err)
	}
	orphans, err := children(c.mu.server.pid())
	if err != nil {
		return err
	}
	c.mu.orphans = orphans
	if err := c.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-c.mu.server.exited
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
		return !slices.ContainsFunc(c.mu.orphans, process.alive)
	})
	if err != nil {
		return fmt.Errorf("wait for the backends of the killed server in %s: %w", c.directory, err)
	}
	c.mu.orphans = nil
	return nil
}

// Close ends the server, removes the directory and gives the port back. A second
// call does nothing.
func (c *Cluster) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil
	}
	c.mu.closed = true
	err := errors.Join(c.end(), os.RemoveAll(c.directory))
	if err != nil && c.guard != nil {
		c.guard.act() // it knows the processes that we failed to end
		err = fmt.Errorf("close the cluster in %s: %w", c.directory, err)
	}
	c.letGo()
	return err
}

// end makes sure that nothing of the server is left, neither processes nor
// shared memory.
func (c *Cluster) end() error {
	if c.mu.server == nil {
		return nil
	}
	if err := c.stop(Immediate); err != nil {
		return errors.Join(err, c.kill(true))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.awaitGone(ctx); err != nil {
		return err
	}
	// A server that could not remove this file could not give back its shared
	// memory either. The next start in the same directory does that, before it
	// begins recovery and says its status.
	if _, err := os.Stat(filepath.Join(c.data(), "postmaster.pid")); err != nil {
		return nil
	}
	if err := c.execute(); err != nil {
		return err
	}
	err := c.mu.server.await(ctx, func(status string) bool { return status != "" })
	if err != nil && !errors.Is(err, errExited) {
		return errors.Join(err, c.kill(true))
	}
	return c.stop(Immediate)
}

// Detach leaves the server running: neither Close nor the guard end it when this
// process does. Dir then belongs to whoever asked for it.
func (c *Cluster) Detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.closed {
		c.mu.closed = true
		c.letGo()
	}
}

func (c *Cluster) letGo() {
	if c.guard != nil {
		c.guard.dismiss()
	}
	c.releasePort()
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

package source

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// blockingSocket is a connection that the runtime's poller does not know. That
// would be woken for each packet, also while we pause; here the thread of the
// reader waits in the kernel by itself, and a pause is a pause. What the poller
// gives an ordinary connection, deadlines and an end to a call that waits, comes
// from an eventfd for each direction that every wait also listens to.
type blockingSocket struct {
	silence
	fd            int
	local, remote net.Addr
	reads, writes direction

	// life is held for reading by every call that uses descriptors, so that
	// Close frees their numbers only when nobody uses them any more.
	life   sync.RWMutex
	closed atomic.Bool

	// What follows belongs to the holder of reads.mu. Bytes in [start, end) of
	// buffer have been read from the kernel and not yet by the caller.
	pace       pacer
	buffer     []byte
	start, end int
}

// direction is one half of the connection, used by one call at a time.
type direction struct {
	mu       sync.Mutex
	wake     int          // eventfd: look at deadline and closed again
	deadline atomic.Int64 // nanoseconds of Unix time, 0 for none
}

// newSocket takes conn over, which is closed in any case.
func newSocket(conn net.Conn) (socket, error) {
	defer conn.Close()
	descriptor, err := takeDescriptor(conn)
	if err != nil {
		return nil, err
	}
	s := &blockingSocket{
		silence: newSilence(), fd: descriptor,
		local: conn.LocalAddr(), remote: conn.RemoteAddr(),
		pace: newPacer(conn.RemoteAddr()), buffer: make([]byte, receiveBuffer),
	}
	if s.reads.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(os.NewSyscallError("eventfd", err), unix.Close(s.fd))
	}
	if s.writes.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(os.NewSyscallError("eventfd", err), unix.Close(s.fd), unix.Close(s.reads.wake))
	}
	if s.remote.Network() == "tcp" {
		// Best effort: without it the kernel takes longer to notice a dead peer.
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout/time.Millisecond))
	}
	return s, nil
}

// takeDescriptor duplicates the descriptor of conn: closing conn then only
// takes the connection away from the poller. It stays non-blocking.
func takeDescriptor(conn net.Conn) (int, error) {
	owner, ok := conn.(syscall.Conn)
	if !ok {
		return 0, errors.New("take over the socket: the connection has no descriptor")
	}
	raw, err := owner.SyscallConn()
	if err != nil {
		return 0, err
	}
	var duplicate int
	var duplicateErr error
	if err := raw.Control(func(fd uintptr) {
		duplicate, duplicateErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return 0, err
	}
	return duplicate, os.NewSyscallError("fcntl", duplicateErr)
}

// limitLoopback gives a connection to a loopback address its small buffer and its
// small segments, before it connects. A segment that does not fit the window waits
// for the peer's timer of probes, and then for the next one, 200 ms each: whole
// streams crawled at 80 KB/s, for minutes, after reading had paused. The window of
// a small buffer shrinks when what arrives takes more memory than it has bytes, and
// left to itself the peer sends segments of half of the largest window it was told.
func limitLoopback(_, address string, raw syscall.RawConn) error {
	peer, err := netip.ParseAddrPort(address)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return nil // the path of a Unix socket, or not ours to limit
	}
	return raw.Control(func(fd uintptr) {
		// Best effort: without the first only speed is lost, and with it the second is needed.
		if unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, loopbackSegment) == nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, loopbackBuffer)
		}
	})
}

func (s *blockingSocket) Read(p []byte) (int, error) {
	s.reads.mu.Lock()
	defer s.reads.mu.Unlock()
	s.life.RLock()
	defer s.life.RUnlock()
	if err := s.usable(&s.reads); err != nil {
		return 0, s.fault("read", err)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if s.start == s.end {
		n, err := s.fill()
		if err != nil {
			return 0, err
		}
		s.start, s.end = 0, n
	}
	n := copy(p, s.buffer[s.start:s.end])
	s.start += n
	return n, nil
}

// fill reads into the empty buffer, after the pause that is due.
func (s *blockingSocket) fill() (int, error) {
	for {
		pause := s.pace.pause(time.Now())
		if pause <= 0 {
			break
		}
		if err := s.wait(&s.reads, 0, pause); err != nil {
			return 0, s.fault("read", err)
		}
	}
	defer s.silence.end()
	for {
		n, err := unix.Read(s.fd, s.buffer)
		switch {
		case err == nil && n == 0:
			return 0, io.EOF
		case err == nil:
			s.pace.read(time.Now(), n)
			s.took(n)
			return n, nil
		case err == unix.EAGAIN:
			s.begin()
			if err := s.wait(&s.reads, unix.POLLIN, -1); err != nil {
				return 0, s.fault("read", err)
			}
		case err != unix.EINTR:
			return 0, s.fault("read", os.NewSyscallError("read", err))
		}
	}
}

func (s *blockingSocket) Write(p []byte) (int, error) {
	s.writes.mu.Lock()
	defer s.writes.mu.Unlock()
	s.life.RLock()
	defer s.life.RUnlock()
	if err := s.usable(&s.writes); err != nil {
		return 0, s.fault("write", err)
	}
	for written := 0; ; {
		n, err := unix.Write(s.fd, p[written:])
		switch {
		case err == nil:
			if written += n; written == len(p) {
				return written, nil
			}
		case err == unix.EAGAIN:
			if err := s.wait(&s.writes, unix.POLLOUT, -1); err != nil {
				return written, s.fault("write", err)
			}
		case err != unix.EINTR:
			return written, s.fault("write", os.NewSyscallError("write", err))
		}
	}
}

// usable returns why a call of this direction must not go on, or nil.
func (s *blockingSocket) usable(d *direction) error {
	if s.closed.Load() {
		return net.ErrClosed
	}
	if deadline := d.deadline.Load(); deadline != 0 && time.Now().UnixNano() >= deadline {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// wait returns when the socket has one of events, when limit has passed (never
// if negative), or for no reason at all; with an error when the direction is
// not usable any more. Without events it only pauses.
func (s *blockingSocket) wait(d *direction, events int16, limit time.Duration) error {
	if err := s.usable(d); err != nil {
		return err
	}
	if deadline := d.deadline.Load(); deadline != 0 {
		left := max(0, time.Duration(deadline-time.Now().UnixNano()))
		if limit < 0 || left < limit {
			limit = left
		}
	}
	var timeout *unix.Timespec
	if limit >= 0 {
		spec := unix.NsecToTimespec(int64(limit))
		timeout = &spec
	}
	listen := []unix.PollFd{{Fd: int32(d.wake), Events: unix.POLLIN}, {Fd: int32(s.fd), Events: events}}
	if events == 0 {
		listen = listen[:1] // an error of the socket would end the pause
	}
	if _, err := unix.Ppoll(listen, timeout, nil); err != nil && err != unix.EINTR {
		return os.NewSyscallError("ppoll", err)
	}
	if listen[0].Revents != 0 {
		var counter [8]byte
		_, _ = unix.Read(d.wake, counter[:]) // takes the wake-up back
	}
	return s.usable(d)
}

// signal has a waiting call of this direction look at deadline and closed again.
func (d *direction) signal() {
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // any number but zero, in any byte order
	_, _ = unix.Write(d.wake, one[:])
}

// Close ends every call that waits, and returns when the descriptors are free.
func (s *blockingSocket) Close() error {
	if s.closed.Swap(true) {
		return s.fault("close", net.ErrClosed)
	}
	s.reads.signal()
	s.writes.signal()
	s.life.Lock()
	defer s.life.Unlock()
	return errors.Join(unix.Close(s.fd), unix.Close(s.reads.wake), unix.Close(s.writes.wake))
}

func (s *blockingSocket) LocalAddr() net.Addr { return s.local }

func (s *blockingSocket) RemoteAddr() net.Addr { return s.remote }

func (s *blockingSocket) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

func (s *blockingSocket) SetReadDeadline(t time.Time) error { return s.setDeadline(&s.reads, t) }

func (s *blockingSocket) SetWriteDeadline(t time.Time) error { return s.setDeadline(&s.writes, t) }

func (s *blockingSocket) setDeadline(d *direction, t time.Time) error {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed.Load() {
		return s.fault("set", net.ErrClosed)
	}
	d.deadline.Store(nanoseconds(t))
	d.signal()
	return nil
}

// nanoseconds is t in Unix time. Times that this cannot express are either long
// past, as the deadline with which pgconn ends a call is, or never come.
func nanoseconds(t time.Time) int64 {
	switch {
	case t.IsZero(), t.Year() > 2200:
		return 0
	case t.Before(time.Unix(0, 1)):
		return 1
	}
	return t.UnixNano()
}

// fault wraps an error as package net does.
func (s *blockingSocket) fault(operation string, err error) error {
	return &net.OpError{Op: operation, Net: s.remote.Network(), Source: s.local, Addr: s.remote, Err: err}
}

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// maxSocketPath bounds the path of a Unix socket: the kernel takes 107 bytes
// (unix(7)), other systems fewer.
const maxSocketPath = 100

// makeHome makes the directory of one cluster: the one that was asked for, else a
// temporary one where the account can reach it and a socket's path stays short.
// The system's temporary directory may be private to us or deep; the cache was
// proven reachable.
func makeHome(wanted string, c *cache) (string, error) {
	if wanted != "" {
		directory, err := filepath.Abs(wanted)
		if err != nil {
			return "", fmt.Errorf("resolve a cluster's directory: %w", err)
		}
		if err := makeDirectories(filepath.Dir(directory)); err != nil {
			return "", err
		}
		if err := os.Mkdir(directory, 0o755); err != nil {
			return "", fmt.Errorf("make a cluster's directory: %w", err)
		}
		if err := settle(directory, c.account); err != nil {
			return "", errors.Join(err, os.Remove(directory))
		}
		return directory, nil
	}
	var problems []error
	for _, base := range []string{os.TempDir(), "/var/tmp", c.directory} {
		directory, err := os.MkdirTemp(base, "pgapply-")
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if len(filepath.Join(directory, ".s.PGSQL.65535")) >= maxSocketPath {
			err = fmt.Errorf("%s is too long for a socket's path", base)
		} else if err = settle(directory, c.account); err == nil {
			return directory, nil
		}
		problems = append(problems, errors.Join(err, os.Remove(directory)))
	}
	return "", fmt.Errorf("no temporary directory that user %s can reach, set TMPDIR to one: %w", c.account.name, errors.Join(problems...))
}

// settle gives a directory to the account and proves that it can work there.
func settle(directory string, a account) error {
	if err := os.Chmod(directory, 0o755); err != nil {
		return fmt.Errorf("make %s traversable: %w", directory, err)
	}
	if err := a.own(directory); err != nil {
		return err
	}
	if err := a.command(directory, "/bin/sh", "-c", ": >probe && rm probe").Run(); err != nil {
		return fmt.Errorf("user %s cannot work in %s: %w", a.name, directory, err)
	}
	return nil
}

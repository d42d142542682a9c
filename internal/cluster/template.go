package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// template returns a data directory fresh from initdb for this installation. It
// is made once and only read afterwards.
func (c *cache) template(ctx context.Context, i Installation, progress func(string)) (string, error) {
	key, err := i.templateKey()
	if err != nil {
		return "", err
	}
	return c.build(ctx, "templates", key, progress, func(directory string) error {
		if err := c.account.own(directory); err != nil {
			return err
		}
		// Time zone and messages come from account.command's environment, so that
		// one machine's template is like another's. build syncs the result.
		output, err := c.account.run(ctx, filepath.Join(i.BinDir, "initdb"), "--pgdata", directory,
			"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
		if err != nil {
			return fmt.Errorf("initdb of PostgreSQL %s in %s: %w: %s", i.Version, i.BinDir, err, lastLines(output, 6))
		}
		return nil
	})
}

// copyTree copies a data directory and gives every copied file to the account.
// On file systems that can, files share their blocks (copy_file_range). Of a server
// that runs, skip tells by the path in the directory what to leave out, and what is
// removed meanwhile is left out too.
func copyTree(source, destination string, a account, skip func(relative string) bool) error {
	return filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if skip != nil && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		if skip != nil && skip(relative) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		target := filepath.Join(destination, relative)
		switch {
		case entry.IsDir():
			err = os.Mkdir(target, 0o700)
		case entry.Type().IsRegular():
			err = copyFile(path, target)
		default:
			err = errors.New("neither a file nor a directory")
		}
		if skip != nil && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", path, err)
		}
		return a.own(target)
	})
}

func copyFile(source, destination string) error {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(destination, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

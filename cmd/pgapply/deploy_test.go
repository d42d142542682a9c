package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const deployed = "../../deploy/"

// accepted fails unless this program takes a command line, in an environment.
func accepted(t *testing.T, environment map[string]string, arguments ...string) {
	t.Helper()
	root := newRoot(nil)
	command, rest, err := root.Find(arguments)
	require.NoError(t, err)
	require.NotSame(t, root, command, "%q", arguments)
	if command.Name() == "run" {
		require.NoError(t, call(t, environment, arguments...).err, "%q", arguments)
		return
	}
	require.NoError(t, command.ParseFlags(rest), "%q", arguments)
	require.NoError(t, command.ValidateArgs(command.Flags().Args()), "%q", arguments)
}

func TestUnit(t *testing.T) {
	file, err := os.Open(deployed + "systemd/pgapply@.service")
	require.NoError(t, err)
	defer file.Close()
	directory := t.TempDir()
	settings := filepath.Join(directory, "shop.yaml")
	require.NoError(t, os.WriteFile(settings, []byte("publication: [shop]\n"), 0o600))
	names := strings.NewReplacer("/etc/pgapply", directory, "%i", "shop", "%C", directory)
	environment := map[string]string{"PGAPPLY_SOURCE": "dbname=a", "PGAPPLY_TARGET": "dbname=b"}
	var command []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		switch value = names.Replace(value); name {
		case "ExecStart":
			command = strings.Fields(value)
		case "Environment":
			variable, value, _ := strings.Cut(value, "=")
			environment[variable] = value
		}
	}
	require.Equal(t, "/usr/local/bin/pgapply", command[0])
	accepted(t, environment, command[1:]...)
	c := call(t, environment, command[1:]...)
	require.Empty(t, c.log)
	require.Equal(t, "shop", c.options.Name)
	require.Equal(t, filepath.Join(directory, "pgapply/shop"), c.options.SpoolDir)
}

// manifest is what these tests read of a Kubernetes object.
type manifest struct {
	Kind       string
	Metadata   struct{ Name string }
	StringData map[string]string `yaml:"stringData"`
	Data       map[string]string
	Spec       struct {
		podSpec  `yaml:",inline"`
		Template struct{ Spec podSpec }
	}
}

type podSpec struct {
	InitContainers []container `yaml:"initContainers"`
	Containers     []container
}

type container struct {
	Name, Image string
	Args        []string
	Env         []struct{ Name, Value string }
	Liveness    probe `yaml:"livenessProbe"`
	Readiness   probe `yaml:"readinessProbe"`
	Startup     probe `yaml:"startupProbe"`
}

type probe struct {
	HTTPGet struct{ Path string } `yaml:"httpGet"`
	Exec    struct{ Command []string }
}

func TestManifests(t *testing.T) {
	files, err := filepath.Glob(deployed + "kubernetes/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			decoder, environment, directory := yaml.NewDecoder(bytes.NewReader(text)), map[string]string{}, t.TempDir()
			var containers []container
			for {
				var object manifest
				if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				for name, value := range object.StringData {
					environment[name] = value
				}
				for name, value := range object.Data {
					require.NoError(t, os.WriteFile(filepath.Join(directory, name), []byte(value), 0o600))
				}
				for _, pod := range []podSpec{object.Spec.podSpec, object.Spec.Template.Spec} {
					containers = append(append(containers, pod.InitContainers...), pod.Containers...)
				}
			}
			seen := 0
			for _, c := range containers {
				if c.Name != "pgapply" {
					continue
				}
				seen++
				for _, variable := range c.Env {
					environment[variable.Name] = variable.Value
				}
				inPod := func(arguments []string) []string {
					return strings.Fields(strings.ReplaceAll(strings.Join(arguments, " "), "/etc/pgapply", directory))
				}
				accepted(t, environment, inPod(c.Args)...)
				require.NotContains(t, call(t, environment, inPod(c.Args)...).log, unreadText)
				for _, p := range []probe{c.Liveness, c.Readiness, c.Startup} {
					if path := p.HTTPGet.Path; path != "" {
						require.Contains(t, []string{"/healthz", "/readyz"}, path, "which need no token")
					}
					if command := p.Exec.Command; len(command) > 0 {
						require.Equal(t, "/pgapply", command[0])
						accepted(t, environment, inPod(command[1:])...)
					}
				}
			}
			require.Equal(t, 1, seen)
		})
	}
}

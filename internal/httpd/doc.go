// Package httpd shows a running subscription over HTTP, to probes, Prometheus and people.
//
//	/healthz   200 while the process works, else 503; for liveness probes
//	/readyz    200 while it streams and is not far behind, else 503 and why
//	/metrics   for Prometheus
//	/status    JSON, that of `pgapply status --json`
//	/history   JSON, what the page plots: the last half hour
//	/conflicts JSON, the newest conflicts
//	/          a page that shows all of it, live
//
// Nothing can be changed over it, and no request asks a server anything: what a Source
// knows is all there is to see. The package knows neither what a subscription is nor
// where numbers come from; it keeps the page, the door and the last half hour.
package httpd

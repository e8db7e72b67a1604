/* Prints what an event of a token stream costs the client: bench_client [STREAMS [RATE [SECONDS]]]; or serves the same streams to
 * another program's client: bench_client bursts|paced [STREAMS [RATE [SECONDS]]], which prints "PORT REQUESTS CONCURRENCY EVENTS"
 * (of an answer) and ends with its standard input.
 *
 * The server is a child process that sends ready-made bytes: "bursts" sends whole answers as fast as the sockets take them, "paced"
 * RATE events a second to each of STREAMS connections, spread evenly. An event has the size and the members of vLLM's; its text is
 * the time at which it was sent, so that the error of the client's times is known: how much later they are. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "harness/client.h"
#include "harness/completion.h"

#define STREAMS 256
#define RATE 100
#define SECONDS 4
#define BURST_STREAMS 16
#define BURST_REQUESTS 64
#define BURST_EVENTS 4096
#define SEND_EVENTS 64 /* of a burst, in one send */
#define TEXT_DIGITS 20
#define TEXT "00000000000000000000" /* where a time goes */

struct server {
	int listener, port;
	struct text event, last;
	char *time; /* where in event */
	bool paced;
	int streams, rate, events; /* of an answer */
};

struct stream {
	int fd;
	int sent; /* events */
};

static const char head[] =
	"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";

static void add_chunk(struct text *out, const char *data)
{
	text_printf(out, "%zx\r\n%s\r\n", strlen(data), data);
}

static bool send_all(int fd, const char *bytes, size_t len)
{
	while (len > 0) {
		ssize_t sent = send(fd, bytes, len, MSG_NOSIGNAL);
		if (sent < 0)
			return false;
		bytes += sent;
		len -= (size_t)sent;
	}
	return true;
}

/* Reads until the body, which the benchmark ends with '}', is there. */
static int take_request(int listener)
{
	char buffer[4096];
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC), one = 1;
	ssize_t got = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	while (got > 0) {
		got = recv(fd, buffer, sizeof(buffer), 0);
		if (got > 0 && buffer[got - 1] == '}')
			break;
	}
	send_all(fd, head, sizeof(head) - 1);
	return fd;
}

static void end_stream(const struct server *server, int fd)
{
	send_all(fd, server->last.data, server->last.len);
	shutdown(fd, SHUT_WR);
	close(fd);
}

/* One answer after the other; the client's other connections wait in the backlog. */
static void serve_bursts(const struct server *server)
{
	struct text block = {0};
	for (int i = 0; i < SEND_EVENTS; i++)
		text_append(&block, server->event.data, server->event.len);
	for (;;) {
		int fd = take_request(server->listener);
		for (int sent = 0; sent < server->events; sent += SEND_EVENTS)
			send_all(fd, block.data, block.len);
		end_stream(server, fd);
	}
}

/* All streams of a round at the same rate, each a little later than the one before. */
static void serve_paced(const struct server *server)
{
	struct stream *streams = mem_calloc((size_t)server->streams, sizeof(*streams));
	for (;;) {
		for (int i = 0; i < server->streams; i++)
			streams[i] = (struct stream){.fd = take_request(server->listener)};
		int64_t begin_ns = clock_monotonic_ns(), step_ns = 1000000000 / server->rate / server->streams;
		int64_t total = (int64_t)server->events * server->streams;
		for (int64_t k = 0; k < total; k++) {
			struct stream *stream = &streams[k % server->streams];
			clock_sleep_ns(begin_ns + k * step_ns - clock_monotonic_ns());
			char digits[TEXT_DIGITS + 1];
			snprintf(digits, sizeof(digits), "%0*lld", TEXT_DIGITS, (long long)clock_monotonic_ns());
			memcpy(server->time, digits, TEXT_DIGITS);
			send_all(stream->fd, server->event.data, server->event.len);
		}
		for (int i = 0; i < server->streams; i++)
			end_stream(server, streams[i].fd);
	}
}

static pid_t start_server(struct server *server)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(server->listener, (struct sockaddr *)&address, len) != 0 || listen(server->listener, 1024) != 0 ||
		getsockname(server->listener, (struct sockaddr *)&address, &len) != 0)
		return -1;
	server->port = ntohs(address.sin_port);
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_TIMERSLACK, 1UL);
		if (server->paced)
			serve_paced(server);
		else
			serve_bursts(server);
		_exit(1);
	}
	return pid;
}

static int compare_times(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

/* How much later than its sending an event was timed; nothing for events that do not tell. */
static void print_lateness(const struct run_result *run, size_t n_events)
{
	int64_t *late_ns = mem_calloc(n_events + 1, sizeof(*late_ns)), sum_ns = 0;
	size_t n = 0;
	for (size_t i = 0; i < run->n_requests; i++) {
		const struct request_result *request = &run->requests[i];
		for (size_t j = 0; j < request->n_times && (j + 1) * TEXT_DIGITS <= strlen(request->text); j++) {
			char digits[TEXT_DIGITS + 1] = "";
			long long sent_ns = 0;
			memcpy(digits, request->text + j * TEXT_DIGITS, TEXT_DIGITS);
			if (!text_to_i64(digits, &sent_ns) || sent_ns == 0)
				continue;
			late_ns[n] = request->token_times_ns[j] - sent_ns;
			sum_ns += late_ns[n++];
		}
	}
	qsort(late_ns, n, sizeof(*late_ns), compare_times);
	if (n > 0)
		printf(" %10.1f %8.1f %8.1f\n", (double)sum_ns / (double)n / 1e3, (double)late_ns[n * 99 / 100] / 1e3,
			(double)late_ns[n - 1] / 1e3);
	else
		printf(" %10s %8s %8s\n", "-", "-", "-");
	mem_free(late_ns);
}

static void print_row(
	const char *name, const struct run_result *run, const struct client_report *report, double total_cpu_s, size_t events)
{
	double wall_s = (double)(run->end_ns - run->begin_ns) / 1e9;
	size_t bad = 0, arrived = 0;
	for (size_t i = 0; i < run->n_requests; i++) {
		bad += !run->requests[i].ok;
		arrived += run->requests[i].n_times;
	}
	printf("%-8s %9zu %8.2f %12.0f %10.2f %12.2f %8.0f %%", name, arrived, wall_s, (double)arrived / wall_s,
		report->cpu_frac * wall_s / (double)arrived * 1e6, total_cpu_s / (double)arrived * 1e6, report->cpu_frac * 100);
	print_lateness(run, arrived);
	if (bad || arrived != events)
		printf("%-8s %zu requests failed, %zu events expected: %s\n", "", bad, events,
			bad && run->requests[0].error ? run->requests[0].error : "");
}

static enum status measure(const char *name, struct server *server, int requests, struct err *err)
{
	struct client *client = NULL;
	struct run_result run = {0};
	struct client_report report;
	struct client_body *bodies = mem_calloc((size_t)requests, sizeof(*bodies));
	char url[64];
	for (int i = 0; i < requests; i++)
		bodies[i] = (struct client_body){"{}", 2, server->events};
	pid_t pid = start_server(server);
	snprintf(url, sizeof(url), "http://127.0.0.1:%d/v1/completions", server->port);
	struct client_load load = {.url = url,
		.bodies = bodies,
		.n_bodies = (size_t)requests,
		.concurrency = server->streams,
		.run_timeout_s = 120,
		.stall_s = 20};
	enum status status = pid > 0 ? client_create(&client, err) : err_set(err, STATUS_UNAVAILABLE, "no server");
	int64_t cpu_ns = clock_thread_cpu_ns();
	if (!status)
		status = client_run_load(client, &load, &run, &report, err);
	double total_cpu_s = (double)(clock_thread_cpu_ns() - cpu_ns) / 1e9;
	if (!status)
		print_row(name, &run, &report, total_cpu_s, (size_t)requests * (size_t)server->events);
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	run_result_release(&run);
	client_destroy(client);
	mem_free(bodies);
	return status;
}

/* The load of measure, for a client of somebody else. */
static enum status serve(struct server *server, int requests, struct err *err)
{
	pid_t pid = start_server(server);
	if (pid <= 0)
		return err_set(err, STATUS_UNAVAILABLE, "no server");
	printf("%d %d %d %d\n", server->port, requests, server->streams, server->events);
	fflush(stdout);
	for (char bytes[64]; read(STDIN_FILENO, bytes, sizeof(bytes)) > 0;)
		continue;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return STATUS_OK;
}

static enum status measure_both(struct server *bursts, struct server *paced, struct err *err)
{
	printf("%-8s %9s %8s %12s %11s %12s %10s %11s %8s %8s\n", "", "events", "s", "events/s", "µs CPU", "with reading",
		"of a core", "µs late", "99 %", "most");
	enum status status = measure("bursts", bursts, BURST_REQUESTS, err);
	return status ? status : measure("paced", paced, paced->streams, err);
}

int main(int argc, char **argv)
{
	long long streams = STREAMS, rate = RATE, seconds = SECONDS;
	struct err err = {0};
	const char *served = argc > 1 && (text_equal(argv[1], "bursts") || text_equal(argv[1], "paced")) ? argv[1] : NULL;
	argc -= served != NULL;
	argv += served != NULL;
	if ((argc > 1 && !text_to_i64(argv[1], &streams)) || (argc > 2 && !text_to_i64(argv[2], &rate)) ||
		(argc > 3 && !text_to_i64(argv[3], &seconds)) || argc > 4 || streams < 1 || rate < 1 || seconds < 1) {
		fprintf(stderr, "usage: bench_client [bursts|paced] [STREAMS [RATE [SECONDS]]]\n");
		return status_exit_code(STATUS_INPUT);
	}
	struct server bursts = {.streams = BURST_STREAMS, .events = BURST_EVENTS},
		      paced = {.paced = true, .streams = (int)streams, .rate = (int)rate, .events = (int)(rate * seconds)};
	add_chunk(&bursts.event,
		"data: {\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"object\":\"text_completion\",\"created\":1764460800,"
		"\"model\":\"model\",\"choices\":[{\"index\":0,\"text\":\"" TEXT "\",\"logprobs\":null,\"finish_reason\":null,"
		"\"stop_reason\":null}],\"usage\":null}\n\n");
	add_chunk(&bursts.last, "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n");
	add_chunk(&bursts.last, "data: [DONE]\n\n");
	text_append_str(&bursts.last, "0\r\n\r\n");
	bursts.time = strstr(bursts.event.data, TEXT);
	paced.event = bursts.event;
	paced.time = bursts.time;
	paced.last = bursts.last;
	enum status status = !served           ? measure_both(&bursts, &paced, &err)
		: text_equal(served, "bursts") ? serve(&bursts, BURST_REQUESTS, &err)
					       : serve(&paced, (int)streams, &err);
	if (status)
		fprintf(stderr, "bench_client: %s\n", err.text);
	text_release(&bursts.event);
	text_release(&bursts.last);
	return status_exit_code(status);
}

#include "dtrain/board/board.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include <sys/signalfd.h>

#include "access.h"
#include "assets.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/environment.h"
#include "launch_again.h"
#include "logged.h"
#include "queue.h"
#include "run_index.h"
#include "run_views.h"
#include "server.h"

namespace dtrain::board {
namespace {

namespace fs = std::filesystem;

constexpr auto kStreamPeriod = std::chrono::milliseconds(500);
constexpr int kKeepAlivePeriods = 20;
// A report has its scripts in itself. In a sandbox it has no cookie, so it can read and change nothing here.
constexpr const char* kReportPolicy =
    "sandbox allow-scripts allow-downloads allow-popups; default-src 'none'; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:";

// "https://host:8443/dtrain/" is host "host:8443" with the path "/dtrain".
struct BaseUrl {
  std::string host, path;
};

BaseUrl read_base_url(const std::string& text) {
  const std::size_t scheme = text.find("://");
  if (scheme == std::string::npos || scheme + 3 >= text.size() || !text.starts_with("http")) {
    throw ConfigError("--base-url: '" + text + "' is no URL", "write it as the browser does: https://host/path");
  }
  const std::string rest = text.substr(scheme + 3);
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  BaseUrl url{rest.substr(0, slash), rest.substr(slash)};
  while (url.path.ends_with('/')) url.path.pop_back();
  return url;
}

Response json(const Json& value) {
  return {.body = to_line(value)};
}

Response file(std::string_view content, const char* type) {
  return {.type = type, .body = std::string(content)};
}

// The answers to requests. Any thread.
class Answers {
 public:
  Answers(const BoardOptions& options, const Clock& clock)
      : clock_(clock),
        control_(options.control),
        index_(options.folders, cache_of(options.folders), clock),
        live_(clock),
        curves_(clock) {}

  Response answer(const Request& request) {
    if (request.method == "POST") return act(request);
    if (request.path == "/") return file(kPage, "text/html; charset=utf-8");
    if (request.path == "/board.css") return file(kStyle, "text/css; charset=utf-8");
    if (request.path == "/board.js") return file(kScript, "text/javascript; charset=utf-8");
    if (request.path == "/chart.js") return file(kChartJs, "text/javascript; charset=utf-8");
    if (request.path == "/chart.LICENSE.txt") return file(kChartJsTerms, "text/plain; charset=utf-8");
    if (request.path == "/api/runs") return runs();
    if (request.path == "/api/queue") return queue();
    if (request.path.starts_with("/api/run/")) return of_run(request);
    throw ConfigError("the board has no page " + request.path);
  }

  // Sends "runs" when the list has changed, "queue" when the queue has, and "live" for the run that is named.
  void stream(const Request& request, EventStream& stream) {
    const std::string run = request.value("run");
    std::uint64_t version = 0;
    std::string queue, live;
    for (int quiet = 0; !stream.ends(); std::this_thread::sleep_for(kStreamPeriod)) {
      bool sent = false, here = true;
      const auto tell = [&](const char* event, const std::string& data, std::string& last) {
        if (!here || data == last) return;
        here = stream.send(event, data);
        last = data;
        sent = true;
      };
      if (const std::uint64_t now = index_.version(); now != version) {
        version = now;
        here = stream.send("runs", std::to_string(version));
        sent = true;
      }
      tell("queue", to_line(queue_or_error()), queue);
      if (!run.empty()) tell("live", to_line(live_or_error(run)), live);
      quiet = sent ? 0 : quiet + 1;
      if (quiet >= kKeepAlivePeriods) quiet = 0, here = here && stream.keep_alive();
      if (!here) return;
    }
  }

 private:
  static fs::path cache_of(const std::vector<fs::path>& folders) {
    const fs::path cache = rank::cache_folder(rank::process_variables());
    if (cache.empty()) return {};
    std::string all;
    for (const fs::path& folder : folders) all += folder.string() + "\n";
    char name[32];
    std::snprintf(name, sizeof name, "%016zx.json", std::hash<std::string>{}(all));
    return cache / "board" / name;
  }

  Response runs() {
    Json list = index_.list();
    list["control"] = control_;
    list["host"] = host::host_identity().name;
    return json(list);
  }

  Json queue_or_error() {
    try {
      return list_queue(clock_);
    } catch (const std::exception& error) {
      return {{"error", error.what()}};
    }
  }

  Json live_or_error(const std::string& run) {
    try {
      return live_.view(index_.find(run));
    } catch (const std::exception& error) {
      return {{"error", error.what()}};
    }
  }

  Response queue() {
    Json list = queue_or_error();
    list["control"] = control_;
    return json(list);
  }

  // "/api/run/ID", "/api/run/ID/curves"
  Response of_run(const Request& request) {
    const std::string rest = request.path.substr(std::string_view("/api/run/").size());
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    const rank::RunFolder folder = index_.find(rest.substr(0, slash));
    const std::string part = rest.substr(slash);
    const auto step = [&] { return to_number<std::int64_t>(request.value("step")).value_or(-1); };
    if (part.empty()) return json(described(rest.substr(0, slash), folder));
    if (part == "/curves") return {.body = curves_.curves(folder)};
    if (part == "/logged") return json(logged_.list(folder));
    if (part == "/histogram") return json(logged_.histogram(folder, request.value("name"), step()));
    if (part == "/picture") {
      return {.type = "image/png", .body = logged_.picture(folder, request.value("name"), step())};
    }
    if (part == "/live") return json(live_.view(folder));
    if (part == "/analysis") return {.body = analyses_.analysis(folder)};
    if (part == "/log") {
      const int rank = to_number<int>(request.value("rank")).value_or(-1);
      return json(log_lines_of(folder, rank, to_number<std::int64_t>(request.value("from")).value_or(-1)));
    }
    if (part == "/report.html") {
      Response response = file(read_file(folder.path / "report.html"), "text/html; charset=utf-8");
      response.policy = kReportPolicy;
      return response;
    }
    throw ConfigError("the board has nothing of a run under '" + part + "'");
  }

  Json described(const std::string& id, const rank::RunFolder& folder) {
    Json about = describe_run(folder, index_.line(id), clock_);
    about["control"] = control_;
    return about;
  }

  // POST /api/task/ID/kill, /api/run/ID/launch, /api/run/ID/continue
  Response act(const Request& request) {
    const std::vector<std::string> parts = split(request.path, '/');
    const bool has_form = parts.size() == 5 && parts[1] == "api";
    if (has_form && parts[2] == "task") return json(act_on_task(clock_, parts[3], parts[4]));
    if (has_form && parts[2] == "run" && (parts[4] == "launch" || parts[4] == "continue")) {
      const auto how = parts[4] == "launch" ? Launch::kAgain : Launch::kContinue;
      return json(launch_run(index_.find(parts[3]), how, parse_untrusted(request.body)));
    }
    throw ConfigError("the board does not know " + request.path);
  }

  const Clock& clock_;
  const bool control_;
  RunIndex index_;
  LiveViews live_;
  Analyses analyses_;
  CurveViews curves_;
  LoggedValues logged_;
};

// The first of SIGINT, SIGTERM and SIGHUP ends the board. Made before any thread, which inherits the mask.
class EndSignals {
 public:
  EndSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC));
    if (!fd_) throw SystemError("cannot wait for signals", errno);
  }
  void wait() const { wait_readable(fd_.get(), std::chrono::milliseconds(-1)); }

 private:
  UniqueFd fd_;
};

std::vector<std::string> hosts_of(const BoardOptions& options, const std::optional<BaseUrl>& base, std::uint16_t port) {
  std::vector<std::string> hosts;
  const auto add = [&](const std::string& name) {
    hosts.push_back(lower_case(name) + ":" + std::to_string(port));
    if (port == 80) hosts.push_back(lower_case(name));
  };
  for (const char* name : {"127.0.0.1", "localhost", "[::1]"}) add(name);
  const bool is_v6 = options.address.find(':') != std::string::npos;
  if (options.address != "127.0.0.1") {
    add(is_v6 ? "[" + options.address + "]" : options.address);
    add(host::host_identity().name);
  }
  if (base) hosts.push_back(lower_case(base->host));
  return hosts;
}

void open_browser(const std::string& url) {
  try {
    Process::start({.command = {"xdg-open", url}, .new_process_group = false}).detach();
  } catch (const SystemError& error) {
    std::fprintf(stderr, "dtrain: warning: --open: %s\n", error.what());
  }
}

}  // namespace

ExitCode serve_board(const BoardOptions& options) {
  const std::optional<BaseUrl> base =
      options.base_url.empty() ? std::nullopt : std::optional(read_base_url(options.base_url));
  const EndSignals signals;
  const SystemClock clock;
  Server server({options.address, options.port, base ? base->path : std::string()});
  Answers answers(options, clock);
  const std::string token = random_hex(16);
  server.begin({.token = token, .hosts = hosts_of(options, base, server.port()), .control = options.control},
               {.answer = [&](const Request& request) { return answers.answer(request); },
                .stream = [&](const Request& request, EventStream& stream) { answers.stream(request, stream); }});

  const bool everywhere = options.address == "0.0.0.0" || options.address == "::";
  const std::string shown = everywhere ? host::host_identity().name : options.address;
  const std::string port = std::to_string(server.port());
  std::string url = "http://" + (shown.find(':') == std::string::npos ? shown : "[" + shown + "]") + ":" + port;
  if (base) url = options.base_url.substr(0, options.base_url.find("://") + 3) + base->host + base->path;
  url += "/?token=" + token;
  std::printf("board       %s\n", url.c_str());
  for (const fs::path& folder : options.folders) std::printf("runs        %s\n", folder.c_str());
  std::printf("may         %s\n", options.control ? "read, launch runs, and kill, pause and activate tasks"
                                                  : "read only (--control: also launch runs, and kill, pause and "
                                                    "activate tasks)");
  if (!base && options.address == "127.0.0.1" && std::getenv("SSH_CONNECTION")) {
    std::printf("from afar   ssh -L %s:127.0.0.1:%s %s   and then the same address\n", port.c_str(), port.c_str(),
                host::host_identity().name.c_str());
  }
  std::printf("Ctrl-C ends it; runs go on.\n");
  if (std::fflush(stdout) != 0) throw SystemError("the board's address could not be written to standard output", errno);
  if (options.open) open_browser(url);
  signals.wait();
  return ExitCode::kDone;
}

}  // namespace dtrain::board

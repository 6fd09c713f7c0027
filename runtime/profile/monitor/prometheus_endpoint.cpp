#include "monitor/prometheus_endpoint.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <netdb.h>
#include <sys/socket.h>

#include "dtrain/base/error.h"

namespace dtrain::profile {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

constexpr std::size_t kMostConnections = 32;
constexpr int kMostAcceptedAtOnce = 16;  // the monitor's other work comes between
constexpr std::size_t kLongestRequest = 8192;
constexpr Nanoseconds kPatience = std::chrono::seconds(5);     // with a connection, from its acceptance to its end
constexpr Nanoseconds kAcceptPause = std::chrono::seconds(1);  // after no more could be accepted
constexpr const char* kGauge = "gauge";
constexpr const char* kCounter = "counter";

// The text format of Prometheus. All values of a family are together; a family without values is left out.
class Families {
 public:
  explicit Families(const std::map<std::string, std::string>& labels) : common_(labels.begin(), labels.end()) {}

  void family(const char* name, const char* help, const char* type) {
    name_ = name;
    head_ = std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void gauge(const char* name, const char* help, const std::optional<double>& value) {
    family(name, help, kGauge);
    if (value) add({}, *value);
  }
  void add(const Labels& labels, double value) {
    text_ += std::exchange(head_, "") + name_;
    char separator = '{';
    for (const auto& some : {common_, labels}) {
      for (const auto& [label, of] : some) {
        text_ += std::exchange(separator, ',') + label + "=\"" + escaped(of) + "\"";
      }
    }
    text_ += separator == '{' ? " " : "} ";
    append(value);
    text_ += '\n';
  }
  template <typename Items, typename ValueOf>
  void each(const char* name, const char* help, const char* type, const char* label, const Items& items,
            const ValueOf& value_of) {
    family(name, help, type);
    for (const auto& item : items) {
      const auto [of, value] = value_of(item);
      if (value) add({{label, std::to_string(of)}}, *value);
    }
  }
  std::string take() { return std::move(text_); }

 private:
  static std::string escaped(const std::string& text) {
    std::string result;
    for (const char letter : text) {
      if (letter == '\\' || letter == '"') result += '\\';
      result += letter == '\n' ? "\\n" : std::string(1, letter);
    }
    return result;
  }
  void append(double value) {
    if (!std::isfinite(value)) {
      text_ += std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
      return;
    }
    char digits[32];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }

  Labels common_;
  std::string name_, head_, text_;
};

using Value = std::pair<int, std::optional<double>>;

void add_system(Families& out, const SystemSample& sample) {
  for (const HostMetric& metric : kHostMetrics) out.gauge(metric.gauge, metric.help, sample.*metric.value);
  out.each("dtrain_gpu_util_percent", "Time in which a kernel ran", kGauge, "gpu", sample.gpus,
           [](const GpuSample& gpu) { return Value(gpu.index, gpu.util); });
  out.each("dtrain_gpu_free_memory_bytes", "GPU memory that is not allocated", kGauge, "gpu", sample.gpus,
           [](const GpuSample& gpu) {
             return Value(gpu.index, gpu.free_memory ? std::optional<double>(*gpu.free_memory) : std::nullopt);
           });
  out.each("dtrain_gpu_temperature_celsius", "Of the chip", kGauge, "gpu", sample.gpus,
           [](const GpuSample& gpu) { return Value(gpu.index, gpu.temperature); });
  out.each("dtrain_rank_resident_memory_bytes", "Memory of a rank's process", kGauge, "rank", sample.processes,
           [](const ProcessRecord& process) { return Value(process.rank, process.resident_bytes); });
  out.each("dtrain_rank_cpu_util_percent", "Of a rank's process; 100: one core", kGauge, "rank", sample.processes,
           [](const ProcessRecord& process) { return Value(process.rank, process.cpu_percent); });
}

void add_ranks(Families& out, const std::vector<RankTotals>& ranks) {
  const auto each = [&](const char* name, const char* help, const char* type, auto value_of) {
    out.each(name, help, type, "rank", ranks,
             [&](const RankTotals& rank) { return Value(rank.rank, static_cast<double>(value_of(rank))); });
  };
  each("dtrain_batch", "The last batch that ended", kGauge, [](const RankTotals& r) { return r.batch; });
  each("dtrain_epoch", "Its epoch", kGauge, [](const RankTotals& r) { return r.epoch; });
  each("dtrain_last_step_seconds", "How long it took", kGauge,
       [](const RankTotals& r) { return to_seconds(r.last_step_ns); });
  each("dtrain_steps_total", "Batches", kCounter, [](const RankTotals& r) { return r.steps; });
  each("dtrain_samples_total", "Samples", kCounter, [](const RankTotals& r) { return r.samples; });
  each("dtrain_optimizer_steps_total", "Batches after which the optimizer stepped", kCounter,
       [](const RankTotals& r) { return r.optimizer_steps; });
  each("dtrain_step_seconds_total", "Time spent in steps", kCounter,
       [](const RankTotals& r) { return to_seconds(r.wall_ns); });
  each("dtrain_records_dropped_total", "Records that found the ring full", kCounter,
       [](const RankTotals& r) { return r.dropped; });
  each("dtrain_lines_lost_total", "Lines of the dump that could not be written", kCounter,
       [](const RankTotals& r) { return r.lost; });
  // The times are exclusive, so that their sum over phases is dtrain_step_seconds_total.
  out.family("dtrain_phase_seconds_total", "Time spent in a phase, without the phases within it", kCounter);
  for (const RankTotals& rank : ranks) {
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      out.add({{"rank", std::to_string(rank.rank)}, {"phase", std::string(name_of(static_cast<Phase>(i)))}},
              to_seconds(rank.phases[i]));
    }
  }
  const auto each_collective = [&](const char* name, const char* help, auto value_of) {
    out.family(name, help, kCounter);
    for (const RankTotals& rank : ranks) {
      for (const auto& [operation, totals] : rank.collectives) {
        out.add({{"rank", std::to_string(rank.rank)}, {"operation", operation}}, static_cast<double>(value_of(totals)));
      }
    }
  };
  each_collective("dtrain_collectives_total", "Collectives", [](const CollectiveTotals& c) { return c.count; });
  each_collective("dtrain_collective_bytes_total", "Their payload", [](const CollectiveTotals& c) { return c.bytes; });
  each_collective("dtrain_collective_seconds_total", "Their duration",
                  [](const CollectiveTotals& c) { return to_seconds(c.duration_ns); });
  each_collective("dtrain_collective_exposed_seconds_total", "What training waited for of it",
                  [](const CollectiveTotals& c) { return to_seconds(c.exposed_ns); });
}

void add_restarts(Families& out, const RestartTotals& restarts) {
  const auto counter = [&](const char* name, const char* help, double value) {
    out.family(name, help, kCounter);
    out.add({}, value);
  };
  counter("dtrain_restarts_total", "Attempts that failed and were followed by another",
          static_cast<double>(restarts.restarts));
  counter("dtrain_recoveries_total", "Failures after which a new batch has ended",
          static_cast<double>(restarts.recoveries));
  counter("dtrain_batches_again_total", "Batches that recoveries have repeated",
          static_cast<double>(restarts.batches_again));
  counter("dtrain_recovery_seconds_total", "From noticing failures to the end of the first new batch",
          restarts.recovery_s);
  counter("dtrain_lost_seconds_total", "Time without a batch that counts, because of failures", restarts.lost_s);
  out.gauge("dtrain_last_recovery_seconds", "How long the last recovery took",
            restarts.recoveries > 0 ? std::optional(restarts.last_recovery_s) : std::nullopt);
}

// Returns a socket that listens there. Error.
UniqueFd listen_on(const std::string& address, int port, const std::string& where) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(failed == 0 ? found : nullptr, ::freeaddrinfo);
  if (!list) throw Error("cannot listen on " + where + " for Prometheus: " + ::gai_strerror(failed));
  UniqueFd fd(::socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || ::bind(fd.get(), list->ai_addr, list->ai_addrlen) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    throw SystemError(
        "cannot listen on " + where + " for Prometheus", errno,
        "give another profiling.prometheus.port (0: any that is free), or end the program that has it; is "
        "the address one of this machine's?");
  }
  return fd;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char port[NI_MAXSERV] = "0";
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
  return std::atoi(port);
}

bool would_wait() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

PrometheusEndpoint::PrometheusEndpoint(const std::string& address, int port, std::map<std::string, std::string> labels,
                                       const Clock& clock)
    : labels_(std::move(labels)), clock_(clock) {
  const std::string host = address.find(':') == std::string::npos ? address : "[" + address + "]";
  listener_ = listen_on(address, port, host + ":" + std::to_string(port));
  where_ = host + ":" + std::to_string(port_of(listener_.get()));
}

void PrometheusEndpoint::publish(const SystemSample& sample, const std::vector<RankTotals>& ranks,
                                 const RestartTotals& restarts) {
  Families families(labels_);
  add_system(families, sample);
  add_ranks(families, ranks);
  add_restarts(families, restarts);
  metrics_ = families.take();
}

void PrometheusEndpoint::wait_for(std::vector<pollfd>& events) const {
  if (clock_.monotonic() >= next_accept_) events.push_back({listener_.get(), POLLIN, 0});
  for (const Connection& connection : connections_) {
    events.push_back({connection.fd.get(), static_cast<short>(connection.answer.empty() ? POLLIN : POLLOUT), 0});
  }
}

void PrometheusEndpoint::serve() {
  accept_connections();
  const Nanoseconds now = clock_.monotonic();
  connections_.remove_if([&](Connection& connection) { return !goes_on(connection) || now >= connection.deadline; });
}

void PrometheusEndpoint::accept_connections() {
  const Nanoseconds now = clock_.monotonic();
  if (now < next_accept_) return;
  for (int count = 0; count < kMostAcceptedAtOnce; ++count) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      // Without free descriptors the same connection would wake the monitor at once again.
      if (!would_wait() && errno != ECONNABORTED) next_accept_ = now + kAcceptPause;
      return;
    }
    if (connections_.size() == kMostConnections) connections_.pop_front();
    connections_.push_back({std::move(fd), now + kPatience, {}, {}});
  }
}

bool PrometheusEndpoint::goes_on(Connection& connection) const {
  while (connection.answer.empty()) {
    char piece[2048];
    const ssize_t count = ::recv(connection.fd.get(), piece, sizeof piece, 0);
    if (count <= 0) return count < 0 && would_wait();
    connection.request.append(piece, static_cast<std::size_t>(count));
    const bool complete = connection.request.find("\r\n\r\n") != std::string::npos;
    if (complete || connection.request.size() > kLongestRequest)
      connection.answer = answer_to(complete ? connection.request : "");
  }
  while (connection.sent < connection.answer.size()) {
    const ssize_t count = ::send(connection.fd.get(), connection.answer.data() + connection.sent,
                                 connection.answer.size() - connection.sent, MSG_NOSIGNAL);
    if (count < 0) return would_wait();
    connection.sent += static_cast<std::size_t>(count);
  }
  return false;
}

std::string PrometheusEndpoint::answer_to(const std::string& request) const {
  const std::string_view line = std::string_view(request).substr(0, request.find("\r\n"));
  const std::string_view method = line.substr(0, line.find(' '));
  std::string_view target = line.substr(std::min(line.size(), method.size() + 1));
  target = target.substr(0, target.find_first_of(" ?"));
  const char* status = "200 OK";
  if (request.empty()) {
    status = "431 Request Header Fields Too Large";
  } else if (method != "GET" && method != "HEAD") {
    status = "405 Method Not Allowed";
  } else if (target != "/metrics") {
    status = "404 Not Found";
  }
  const std::string body = status[0] == '2' ? metrics_ : std::string(status) + "; the metrics are at /metrics\n";
  return std::string("HTTP/1.1 ") + status + "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n" +
         "Allow: GET, HEAD\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" +
         (method == "HEAD" ? "" : body);
}

}  // namespace dtrain::profile

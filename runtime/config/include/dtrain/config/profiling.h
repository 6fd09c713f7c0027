// What is recorded beyond the step records, and for which batches. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dtrain::config {

// Where the agent of each host answers Prometheus.
struct Prometheus {
  std::string address = "127.0.0.1";  // IPv4, of the host; 0.0.0.0: all it has
  int port = 0;                       // 0: any that is free
  bool operator==(const Prometheus&) const = default;
};

// Batches of a rank, from 1; both ends included.
struct BatchRange {
  std::int64_t begin_on_batch = 0;
  std::int64_t end_after_batch = 0;
  bool operator==(const BatchRange&) const = default;
};

struct Profiling {
  bool enabled = false;
  std::int64_t begin_on_batch = 0;  // of `enabled`
  std::optional<std::int64_t> end_after_batch;
  std::optional<BatchRange> trace;       // instead of those two
  std::optional<Prometheus> prometheus;  // none: nobody listens
  // The batches of which every operator is recorded.
  std::optional<BatchRange> traced() const;
  bool operator==(const Profiling&) const = default;
};

}  // namespace dtrain::config

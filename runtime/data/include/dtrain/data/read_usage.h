// The cost of reading batches, summed over the threads that read.
#pragma once

#include <cstdint>

namespace dtrain::data {

struct ReadUsage {
  std::int64_t time_ns = 0;     // from the beginning to the end of each piece of work
  std::int64_t cpu_ns = 0;      // on a core
  std::int64_t no_core_ns = 0;  // ready to run, but no core was free
  std::int64_t bytes = 0;       // read from files by system calls, from the page cache or the disk
  std::int64_t disk_bytes = 0;  // bytes that came from storage, including mapped files
  std::int64_t requests = 0;    // read calls, and page faults that waited for storage

  // Visits the fields by their keys in dumps (dtrain/profile/records.h), except time_ns, which is `fetch_ns` there.
  static void fields(auto&& visit, auto&... usage) {
    visit("cpu_ns", usage.cpu_ns...);
    visit("no_core_ns", usage.no_core_ns...);
    visit("bytes", usage.bytes...);
    visit("disk_bytes", usage.disk_bytes...);
    visit("requests", usage.requests...);
  }

  // Returns the time of waits for storage or for locks.
  std::int64_t waiting_ns() const { return time_ns > cpu_ns + no_core_ns ? time_ns - cpu_ns - no_core_ns : 0; }
  ReadUsage& operator+=(const ReadUsage& other);
  ReadUsage operator-(const ReadUsage& other) const;
};

}  // namespace dtrain::data

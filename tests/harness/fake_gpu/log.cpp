#include "log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace dtrain::test::fake_gpu {

namespace {

constexpr struct {
  std::int64_t FakeGpuCounts::*which;
  const char* name;
} kCounts[] = {{&FakeGpuCounts::kernels, "kernels"},
               {&FakeGpuCounts::nccl_operations, "nccl_operations"},
               {&FakeGpuCounts::graph_launches, "graph_launches"},
               {&FakeGpuCounts::copies_to_device, "copies_to_device"},
               {&FakeGpuCounts::copies_to_host, "copies_to_host"},
               {&FakeGpuCounts::copies_on_device, "copies_on_device"},
               {&FakeGpuCounts::pageable_copies, "pageable_copies"},
               {&FakeGpuCounts::scalar_reads, "scalar_reads"},
               {&FakeGpuCounts::host_syncs, "host_syncs"},
               {&FakeGpuCounts::allocations, "allocations"},
               {&FakeGpuCounts::reports, "reports"}};
static_assert(sizeof kCounts / sizeof kCounts[0] == sizeof(FakeGpuCounts) / sizeof(std::int64_t));

// {"kernels":              123,   all lines are of this width, so that a number is changed in its place
constexpr std::size_t kLine = 48;
constexpr std::size_t kDigits = 20;
constexpr std::size_t kNumberAt = kLine - 2 - kDigits;  // behind it: a comma or the bracket, and the end of the line

void write_number(char* line, std::int64_t number) {
  char digits[kDigits];
  const auto [end, code] = std::to_chars(digits, digits + kDigits, number);
  const auto length = static_cast<std::size_t>(end - digits);
  std::memcpy(line + kNumberAt + kDigits - length, digits, length);
}

std::string first_lines() {
  std::string text;
  for (const auto& [which, name] : kCounts) {
    std::string line = std::string(text.empty() ? "{\"" : " \"") + name + "\":";
    line.resize(kLine - 2, ' ');
    line += which == std::end(kCounts)[-1].which ? "}\n" : ",\n";
    write_number(line.data(), 0);
    text += line;
  }
  return text;
}

int open_file(const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) throw std::system_error(errno, std::generic_category(), "DTRAIN_FAKE_GPU_LOG: " + path);
  return file;
}

}  // namespace

Log::Log() {
  const char* const folder = std::getenv("DTRAIN_FAKE_GPU_LOG");
  if (folder == nullptr || *folder == '\0') return;
  const char* const rank = std::getenv("DTRAIN_RANK");
  const std::string path =
      std::string(folder) + "/rank" + (rank == nullptr ? "" : rank) + "-" + std::to_string(::getpid());
  reports_ = open_file(path + ".reports", O_WRONLY | O_APPEND);
  const int file = open_file(path + ".counts.json", O_RDWR);
  const std::string lines = first_lines();
  if (::write(file, lines.data(), lines.size()) != static_cast<ssize_t>(lines.size())) {
    throw std::system_error(errno, std::generic_category(), "DTRAIN_FAKE_GPU_LOG: " + path);
  }
  void* const mapped = ::mmap(nullptr, lines.size(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "DTRAIN_FAKE_GPU_LOG: " + path);
  ::close(file);
  counts_ = static_cast<char*>(mapped);
}

void Log::report(const std::string& text) {
  if (reports_ < 0 || !written_.insert(text).second) return;
  const std::string line = text + '\n';
  [[maybe_unused]] const auto written = ::write(reports_, line.data(), line.size());
}

void Log::count(std::int64_t FakeGpuCounts::*which) {
  if (counts_ == nullptr) return;
  ++(totals_.*which);
  char* line = counts_;
  for (const auto& [member, name] : kCounts) {
    if (member == which) return write_number(line, totals_.*which);
    line += kLine;
  }
}

}  // namespace dtrain::test::fake_gpu

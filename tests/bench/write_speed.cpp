#include "write_speed.h"

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::bench {

double write_speed_gb_s(const std::filesystem::path& file, std::size_t bytes) {
  constexpr std::size_t kBlock = 8u << 20;
  const std::size_t blocks = (bytes + kBlock - 1) / kBlock;
  ProcessOptions options;
  options.command = {"dd",           "if=/dev/zero", "of=" + file.string(), "bs=8M", "count=" + std::to_string(blocks),
                     "oflag=direct", "conv=fsync",   "status=none"};
  const SystemClock clock;
  const Nanoseconds began = clock.monotonic();
  const ExitStatus status = Process::start(options).wait();
  const double seconds = to_seconds(clock.monotonic() - began);
  std::error_code code;
  std::filesystem::remove(file, code);
  if (!status.success()) throw Error("dd to " + file.string() + " ended with " + status.describe());
  return static_cast<double>(blocks * kBlock) / seconds / 1e9;
}

}  // namespace dtrain::bench

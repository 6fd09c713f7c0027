#include "dtrain/host/proc_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/base/file.h"

namespace dtrain::host {

std::optional<std::string> read_proc_file(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  std::string text(4096, '\0');
  std::size_t used = 0;
  for (;;) {
    const ssize_t count = TEMP_FAILURE_RETRY(::read(fd.get(), text.data() + used, text.size() - used));
    if (count < 0) return std::nullopt;
    if (count == 0) break;
    used += static_cast<std::size_t>(count);
    if (used == text.size()) text.resize(text.size() * 2);
  }
  text.resize(used);
  return text;
}

}  // namespace dtrain::host

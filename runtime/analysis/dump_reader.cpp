#include "dtrain/analysis/dump_reader.h"

#include <utility>

#include <fcntl.h>

#include "dtrain/base/fd.h"
#include "dump_line.h"
#include "file_lines.h"

namespace dtrain::analysis {

ReadResult read_dump(const std::filesystem::path& path, DumpHandler& handler) {
  ReadResult result;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    result.error = "cannot read " + path.string();
    return result;
  }
  FileLines lines(std::move(fd));
  DumpLineReader reader;
  bool cut_off = false;
  for (std::string_view line; lines.next(line, cut_off);) {
    if (line.empty()) continue;
    switch (reader.read(line, handler)) {
      case LineKind::kUnderstood:
        ++result.lines;
        break;
      case LineKind::kUnknown:
        ++result.unknown;
        break;
      case LineKind::kUnreadable:
        cut_off ? void(result.torn_end = true) : void(++result.unreadable);
        break;
      case LineKind::kNewerSchema:
        result.error = path.string() + " has schema " + std::to_string(reader.schema()) + "; this dtrain reads " +
                       std::to_string(kNewestSchema) + " and older: use the dtrain that wrote it, or a newer one";
        return result;
    }
  }
  return result;
}

}  // namespace dtrain::analysis

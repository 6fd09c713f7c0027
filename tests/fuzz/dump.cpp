// A rank's dump and an agent's, read as `dtrain summary` reads them: the reader, what it feeds, and what is printed.
#include <cstdlib>
#include <fstream>

#include "../harness/temporary_folder.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "support.h"

namespace {

namespace fs = std::filesystem;

// One run folder for all inputs, in memory, gone when the program ends.
class RunFolder {
 public:
  RunFolder() { fs::create_directory(folder_ / "profile"); }

  const fs::path& path() const { return folder_.path(); }
  void write(const std::string& name, dtrain::fuzz::Input content) const {
    std::ofstream(folder_ / "profile" / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  }

 private:
  const dtrain::TemporaryFolder folder_{"/dev/shm"};
};

}  // namespace

void dtrain::fuzz::dump(Input input) {
  static const RunFolder folder;
  const auto [rank, agent] = split(input);
  folder.write("rank-0000.jsonl", rank);
  folder.write("agent-node0.jsonl", agent);
  try {
    const auto summary = analysis::summarize(folder.path());
    (void)to_line(analysis::to_json(summary));
    (void)analysis::render_summary(summary, {});
  } catch (const Error&) {
  }
}

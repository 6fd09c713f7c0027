// A checkpoint's manifest: the input as it is, and with a last line whose checksum is right. What is read is written
// and read again.
#include "dtrain/checkpoint/checkpoint.h"

#include <cstdlib>
#include <string>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"
#include "support.h"

namespace {

using namespace dtrain;

void read_and_write(const std::string& text) {
  checkpoints::Manifest manifest;
  try {
    manifest = checkpoints::parse_manifest(text);
  } catch (const DataError&) {
    return;
  }
  const std::string written = checkpoints::to_text(manifest);
  if (checkpoints::to_text(checkpoints::parse_manifest(written)) != written) std::abort();
}

}  // namespace

void dtrain::fuzz::manifest(Input input) {
  const std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  read_and_write(text);
  read_and_write(text + "\n\"manifest_checksum\":\"" + checkpoints::checksum_text(crc32c(text)) + "\"}\n");
}

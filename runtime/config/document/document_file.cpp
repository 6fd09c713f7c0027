#include "document/document_file.h"

#include <algorithm>
#include <system_error>

#include "document/yaml_document.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::config {

std::string read_text(const std::filesystem::path& file, const std::string& what, Collector& collector) {
  try {
    return read_file(file, kMaxFileBytes);
  } catch (const SystemError& error) {
    collector.add({}, "", "cannot be read: " + std::generic_category().message(error.code()));
  } catch (const DataError&) {
    collector.add({}, "", "larger than 1 MiB, which no " + what + " file is");
  }
  collector.throw_if_any();
  return {};
}

Value parse_document(const std::string& text, Collector& collector) {
  std::optional<Value> document = parse_yaml(text, collector);
  if (document && !document->is_map()) {
    const Location at{std::max(document->at.line, 1), false};
    const std::string message = document->is_null()
                                    ? "the file is empty; it must hold a mapping of keys to values"
                                    : "the file must hold a mapping of keys to values, not " + describe(*document);
    collector.add(at, "", message);
    document.reset();
  }
  if (!document) collector.throw_if_any();
  return std::move(*document);
}

}  // namespace dtrain::config

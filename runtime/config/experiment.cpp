#include "dtrain/config/experiment.h"

#include <algorithm>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "overrides.h"
#include "read_sections.h"
#include "yaml_document.h"

namespace dtrain::config {
namespace {

std::string read_text(const std::filesystem::path& file, Collector& collector) {
  try {
    return read_file(file, kMaxFileBytes);
  } catch (const SystemError& error) {
    collector.add({}, "", "cannot be read: " + std::generic_category().message(error.code()));
  } catch (const DataError&) {
    collector.add({}, "", "larger than 1 MiB, which no experiment file is");
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

}  // namespace

Experiment read_experiment(const std::filesystem::path& file, std::span<const std::string> overrides) {
  Collector collector(file.string());
  Experiment experiment;
  experiment.file = file;
  experiment.text = read_text(file, collector);
  Value document = parse_document(experiment.text, collector);
  apply_overrides(overrides, document, collector);

  Section root(&document, "", document.at, collector);
  read_job(root, experiment);
  read_training(root, experiment);
  root.finish();
  collector.throw_if_any();
  return experiment;
}

}  // namespace dtrain::config

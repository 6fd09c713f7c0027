#include "document/document_file.h"
#include "document/overrides.h"
#include "dtrain/config/experiment.h"
#include "experiment/determined_keys.h"
#include "keys/key_reader.h"
#include "keys/length_paths.h"
#include "keys/plan_writer.h"

namespace dtrain::config {

Experiment read_experiment(const std::filesystem::path& file, std::span<const std::string> overrides,
                           const std::filesystem::path& contents) {
  Collector collector(file.string());
  collector.explain_with(explain_determined_key);
  Experiment experiment;
  experiment.file = file;
  experiment.name = file.stem().string();
  experiment.text = read_text(contents.empty() ? file : contents, "experiment", collector);
  const auto declare = [&](Keys& keys) { declare_keys(keys, experiment); };
  Value document = parse_document(experiment.text, collector);
  apply_overrides(overrides, document, collector, length_paths(declare));

  Section root(&document, "", document.at, collector);
  KeyReader::read_all(root, declare);
  collector.throw_if_any();
  return experiment;
}

Json to_json(const Experiment& experiment) {
  Experiment shown = experiment;
  return PlanWriter::write([&](Keys& keys) { declare_keys(keys, shown); });
}

}  // namespace dtrain::config

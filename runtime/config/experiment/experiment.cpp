#include "dtrain/config/experiment.h"

#include "document/document_file.h"
#include "document/overrides.h"
#include "experiment/determined_keys.h"
#include "experiment/read_sections.h"

namespace dtrain::config {

Experiment read_experiment(const std::filesystem::path& file, std::span<const std::string> overrides) {
  Collector collector(file.string());
  collector.explain_with(explain_determined_key);
  Experiment experiment;
  experiment.file = file;
  experiment.text = read_text(file, "experiment", collector);
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

// A page (HTML, one file, nothing is loaded from elsewhere) that shows the input of a model: pictures as they are
// stored, and after their transforms.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/data/sample.h"
#include "dtrain/data/transforms.h"

namespace dtrain::data {

struct SamplePageOptions {
  std::string title;
  std::int64_t samples = 16;           // number of first samples
  std::int64_t epochs = 4;             // number of epochs whose transforms are shown
  std::uint64_t seed = 0;              // of the experiment
  std::vector<std::string> classes{};  // names of the classes; empty: not known
};

// Returns the page. DataError: those of the source.
std::string sample_page(const std::shared_ptr<const SampleSource>& source, const std::vector<Transform>& transforms,
                        const PictureOptions& options, const SamplePageOptions& page);

}  // namespace dtrain::data

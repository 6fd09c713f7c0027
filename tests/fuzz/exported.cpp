// A file of torch.export, as it is read before its model is trained: the archive, the graph, the tensors; then what it
// says of the shapes of its inputs. Its operators are not called. The first byte says what follows: 0, a whole file;
// otherwise the JSON of the program and that of its weights (support.h, split()), in an archive that is in order.
#include "exported/exported_model.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>

#include "dtrain/base/error.h"
#include "exported/archive.h"
#include "support.h"

// libtorch's reader of archives leaks its tables where its constructor throws: once for a file that is refused.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:mz_zip_reader";
}

namespace dtrain::fuzz {

namespace {

std::string archive_of(Input program, Input weights) {
  std::string file;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    file.append(static_cast<const char*>(data), size);
    return size;
  });
  const auto put = [&](const std::string& name, const void* content, std::size_t size) {
    writer.writeRecord(name, content, size);
  };
  const auto put_text = [&](const std::string& name, std::string_view text) { put(name, text.data(), text.size()); };
  const std::vector<float> values(16, 1);
  for (const char* name : {"weight_0", "weight_1", "weight_2"})
    put("data/weights/" + std::string(name), values.data(), values.size() * sizeof(float));
  put("data/weights/model_weights_config.json", weights.data(), weights.size());
  put_text("data/constants/model_constants_config.json", R"({"config": {}})");
  put("models/model.json", program.data(), program.size());
  put_text("archive_format", "pt2");
  writer.writeEndOfFile();
  return file;
}

// Inputs of the program's types, of as many dimensions as it says, or nearly.
std::vector<at::Tensor> inputs_for(const exported::Program& program) {
  constexpr std::size_t kMostDimensions = 64;
  std::vector<at::Tensor> inputs;
  for (const exported::Input& input : program.inputs) {
    std::vector<std::int64_t> sizes;
    for (const exported::Dimension& dimension : input.shape) {
      const auto* fixed = std::get_if<std::int64_t>(&dimension);
      if (sizes.size() < kMostDimensions) sizes.push_back(fixed && *fixed >= 0 && *fixed < 2 ? *fixed : 1);
    }
    inputs.push_back(at::zeros(sizes, input.type));
  }
  return inputs;
}

}  // namespace

void exported(Input input) {
  if (input.empty()) return;
  std::string archive;
  if (input[0] == 0) {
    archive.assign(input.begin() + 1, input.end());
  } else {
    const auto [program, weights] = split(input.subspan(1));
    archive = archive_of(program, weights);
  }
  const InputFile file({reinterpret_cast<const std::uint8_t*>(archive.data()), archive.size()});
  exported::is_exported_program(file.path());
  try {
    const exported::ExportedModel model(file.path());
    static_cast<void>(model.why_not_repeatable());
    exported::ShapeCheck(model.program()).check(inputs_for(model.program()));
  } catch (const Error&) {
  }
}

}  // namespace dtrain::fuzz

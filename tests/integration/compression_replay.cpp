// Feeds recorded gradients through a GradientCompressor, two ranks as threads, and prints how far its results are from
// recorded ones: compression_replay FOLDER. The folder (compression_parity.py makes it) holds manifest.json, inputs.bin
// (float32, [iteration][rank][all tensors]), outputs.bin ([iteration][all tensors]), and with powersgd q.bin, the
// initial Q of every compressed tensor, column by column.
#include <cmath>
#include <cstdio>
#include <fstream>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/comm/compression.h"
#include "harness/run_ranks.h"

namespace {

using namespace dtrain;

std::vector<float> read_floats(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw DataError(path.string() + " cannot be read");
  std::vector<float> values(static_cast<std::size_t>(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

comm::CodecMaker recorded_codec(const Json& manifest) {
  const std::string word = manifest.at("kind");
  auto codec = choice_named<comm::Compression>(word);
  if (word != word_of(codec)) throw ConfigError("no such compression: " + word);
  if (auto* const power_sgd = std::get_if<comm::PowerSgd>(&codec)) {
    power_sgd->rank = manifest.at("rank");
    power_sgd->warmup_steps = manifest.at("warmup");
  }
  return comm::codec_maker(codec);
}

struct Recording {
  explicit Recording(const std::filesystem::path& folder)
      : manifest(read_json(folder / "manifest.json")),
        inputs(read_floats(folder / "inputs.bin")),
        outputs(read_floats(folder / "outputs.bin")) {
    if (manifest.at("kind") == "powersgd") q = read_floats(folder / "q.bin");
    if (manifest.value("from_recorded_state", false)) errors = read_floats(folder / "errors.bin");
  }
  Json manifest;
  std::vector<float> inputs, outputs, q, errors;
};

// Recorded Qs, and error feedback where it is given (of all tensors), instead of the compressor's own.
void inject(comm::GradientCompressor& compressor, const float* q, const float* errors,
            const std::vector<comm::GradientTensor>& tensors) {
  auto state = compressor.save_state();
  for (auto& entry : state) {
    if (entry.name.starts_with("q/")) {
      std::copy_n(q, entry.values.size(), entry.values.begin());
      q += entry.values.size();
    }
    if (!errors || !entry.name.starts_with("error/")) continue;
    const float* place = errors;
    for (const auto& tensor : tensors) {
      if (entry.name == "error/" + tensor.name) std::copy_n(place, tensor.elements, entry.values.begin());
      place += tensor.elements;
    }
  }
  compressor.load_state(state);
}

// The relative L2 difference of the worst tensor over all iterations, and of all of them in the last one.
Json replay(const Recording& recording, comm::Communicator& communicator) {
  const Json& manifest = recording.manifest;
  std::vector<comm::GradientTensor> tensors;
  std::size_t elements = 0;
  for (const Json& t : manifest.at("tensors")) {
    const auto rows = t.at("rows").get<std::size_t>();
    const auto columns = t.at("columns").get<std::size_t>();
    tensors.push_back({t.at("name"), nullptr, rows * columns, rows, columns});
    elements += rows * columns;
  }
  const auto memory = communicator.allocate(elements * sizeof(float));
  auto* const data = reinterpret_cast<float*>(memory->bytes().data());
  std::vector<std::size_t> all;
  std::size_t offset = 0;
  for (auto& tensor : tensors) {
    tensor.data = data + offset;
    offset += tensor.elements;
    all.push_back(all.size());
  }
  comm::CompressionOptions options;
  options.codec = recorded_codec(manifest);
  comm::GradientCompressor compressor(options, tensors, communicator);
  if (!recording.q.empty() && recording.errors.empty()) inject(compressor, recording.q.data(), nullptr, tensors);

  const auto iterations = manifest.at("iterations").get<std::size_t>();
  const auto world = static_cast<std::size_t>(communicator.world_size());
  double worst = 0;
  Json last = Json::object();
  for (std::size_t i = 0; i < iterations; ++i) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const std::size_t place = (i * world + rank) * elements;
    if (!recording.errors.empty() && compressor.compressing()) {
      inject(compressor, recording.q.data() + i * (recording.q.size() / iterations), recording.errors.data() + place,
             tensors);
    }
    std::copy_n(recording.inputs.begin() + static_cast<std::ptrdiff_t>(place), elements, data);
    compressor.exchange({all, data, elements, comm::DataType::kFloat32, 0}, 1.0 / static_cast<double>(world)).wait();
    compressor.end_step();
    const float* want = recording.outputs.data() + i * elements;
    for (const auto& tensor : tensors) {
      const auto* const got = static_cast<const float*>(tensor.data);
      double difference = 0;
      double norm = 0;
      for (std::size_t k = 0; k < tensor.elements; ++k) {
        difference += std::pow(static_cast<double>(got[k]) - static_cast<double>(want[k]), 2);
        norm += std::pow(static_cast<double>(want[k]), 2);
      }
      const double relative = std::sqrt(difference / norm);
      if (!(relative <= worst)) worst = relative;
      last[tensor.name] = relative;
      want += tensor.elements;
    }
  }
  return {{"worst", worst}, {"last", last}, {"compressed_steps", compressor.statistics().compressed_steps}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: compression_replay FOLDER\n", stderr), 2;
  try {
    const Recording recording(argv[1]);
    Json result;
    test::run_communicator_ranks(test::TestWorld(recording.manifest.at("world")), "thread",
                                 [&](comm::Communicator& communicator) {
                                   Json mine = replay(recording, communicator);
                                   if (communicator.rank() == 0) result = std::move(mine);
                                 });
    std::puts(to_line(result).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "compression_replay: %s\n", error.what());
    return 1;
  }
  return 0;
}

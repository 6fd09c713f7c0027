// Trains a decoder-only language model on a file of tokens, data-parallel, and samples text at the end: GPT-2's
// architecture with tied output weights. make_model.py has the same model in Python, with the same names. Run it with
//   python3 examples/gpt/prepare.py
//   dtrain launch examples/gpt/gpt.yaml
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <dtrain/data/data_sets.h>
#include <dtrain/dtrain.h>

namespace {

namespace F = torch::nn::functional;

struct GptSizes {
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t width = 128;
  std::int64_t length = 128;  // tokens in the model's context
  double dropout = 0;
};

constexpr std::int64_t kVocabulary = 256;  // a token is a byte

// Replaces linear->forward(x), which adds the bias in a separate pass if x has three dimensions.
torch::Tensor affine(const torch::nn::Linear& linear, const torch::Tensor& x) {
  return torch::linear(x, linear->weight, linear->bias);
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptSizes& sizes)
      : norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        attention(register_module("attention", torch::nn::Linear(sizes.width, 3 * sizes.width))),
        projection(register_module("projection", torch::nn::Linear(sizes.width, sizes.width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))),
        up(register_module("up", torch::nn::Linear(sizes.width, 4 * sizes.width))),
        down(register_module("down", torch::nn::Linear(4 * sizes.width, sizes.width))),
        heads(sizes.heads),
        dropout(sizes.dropout) {}

  torch::Tensor forward(torch::Tensor x) {
    const std::int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    auto parts = affine(attention, norm1(x)).split(width, 2);  // queries, keys, values
    for (torch::Tensor& part : parts) part = part.view({batch, length, heads, width / heads}).transpose(1, 2);
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    x = x + drop(affine(projection, mixed.transpose(1, 2).reshape({batch, length, width})));
    return x + drop(affine(down, torch::gelu(affine(up, norm2(x)), "tanh")));
  }

  torch::Tensor drop(const torch::Tensor& x) const {
    return dropout > 0 ? torch::dropout(x, dropout, is_training()) : x;
  }

  torch::nn::LayerNorm norm1;
  torch::nn::Linear attention, projection;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
  std::int64_t heads;
  double dropout;
};
TORCH_MODULE(Block);

// Maps tokens [batch, length] to scores of the next token [batch, length, 256].
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptSizes& sizes)
      : tokens(register_module("tokens", torch::nn::Embedding(kVocabulary, sizes.width))),
        positions(register_module("positions", torch::nn::Embedding(sizes.length, sizes.width))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})))) {
    for (std::int64_t i = 0; i < sizes.layers; ++i) blocks->push_back(Block(sizes));
    register_module("blocks", blocks);
    // GPT-2's initial values, with which the residual sums do not grow with the number of layers.
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : named_parameters()) {
      const std::string& name = parameter.key();
      const bool ends_branch = name.ends_with("projection.weight") || name.ends_with("down.weight");
      if (name.ends_with(".bias")) parameter.value().zero_();
      if (parameter.value().dim() == 2) {
        parameter.value().normal_(0, ends_branch ? 0.02 / std::sqrt(2.0 * static_cast<double>(sizes.layers)) : 0.02);
      }
    }
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const auto places = torch::arange(input.size(1), input.options());
    const auto x = blocks->forward(tokens(input) + positions(places));
    return torch::linear(norm(x), tokens->weight);  // tied: the output layer is the embedding
  }

  torch::nn::Embedding tokens, positions;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);

// Continues `text` by `bytes` bytes, sampled with a temperature; temperature 0 takes the likeliest byte each time. The
// same weights, device and seed give the same text. Computes the whole context for each byte, which is simple but slow
// for large models.
std::string continue_text(Gpt& model, std::string text, std::int64_t bytes, double temperature, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  model->eval();
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto length = static_cast<std::size_t>(model->positions->weight.size(0));
  for (std::int64_t i = 0; i < bytes; ++i) {
    std::string context = text.substr(text.size() - std::min(text.size(), length));
    const auto input = torch::from_blob(context.data(), {1, static_cast<std::int64_t>(context.size())}, torch::kUInt8);
    const auto scores =
        model(input.to(model->tokens->weight.device(), torch::kLong)).select(1, -1).cpu().to(at::kFloat);
    const auto next =
        temperature > 0 ? torch::multinomial((scores / temperature).softmax(1), 1, false, generator) : scores.argmax(1);
    text += static_cast<char>(next.item<std::int64_t>());
  }
  return text;
}

// exp(mean loss) is not the mean of the batches' perplexities, so ranks sum losses and their number.
class Perplexity : public dtrain::SummedMetric {
 public:
  double compute(const torch::Tensor& sums) override {
    return std::exp(sums[0].item<double>() / sums[1].item<double>());
  }
  void add_losses(const torch::Tensor& losses) {
    const torch::Tensor wide = losses.to(at::kDouble);
    add(torch::stack({wide.sum(), torch::ones_like(wide).sum()}));
  }
};

GptSizes sizes_of(const dtrain::TrialContext& context) {
  GptSizes sizes;
  sizes.layers = context.hyperparameter("layers", sizes.layers);
  sizes.heads = context.hyperparameter("heads", sizes.heads);
  sizes.width = context.hyperparameter("width", sizes.width);
  sizes.length = context.hyperparameter("length", sizes.length);
  sizes.dropout = context.hyperparameter("dropout", sizes.dropout);
  if (sizes.heads < 1 || sizes.width % sizes.heads != 0) {
    throw dtrain::ConfigError(
        "hyperparameters.width is " + std::to_string(sizes.width) + ", with " + std::to_string(sizes.heads) + " heads",
        "use a multiple of the number of heads");
  }
  return sizes;
}

class GptTrial : public dtrain::Trial {
 public:
  explicit GptTrial(dtrain::TrialContext& context)
      : context_(context),
        sizes_(sizes_of(context)),
        prompt_(context.data().value("prompt", std::string("\n"))),
        sample_bytes_(context.data().value("sample_bytes", std::int64_t{500})),
        temperature_(context.data().value("temperature", 0.8)),
        model_(context.wrap_model(Gpt(sizes_))) {
    if (prompt_.empty())
      throw dtrain::ConfigError("data.prompt is empty", "give the model at least one byte to continue");
    const dtrain::AdamW decayed{
        .lr = context.hyperparameter<double>("learning_rate"), .beta2 = 0.95, .weight_decay = 0.1};
    dtrain::AdamW not_decayed = decayed;
    not_decayed.weight_decay = 0;
    // Weight decay does not apply to vectors, which are biases and norms, and to embeddings.
    const auto without_decay = [](const std::string& name, const at::Tensor& parameter) {
      return parameter.dim() < 2 || name.starts_with("tokens.") || name.starts_with("positions.");
    };
    context.wrap_optimizer(decayed, {{"without decay", without_decay, not_decayed, {}}});
    // Both lengths count optimizer steps: batches / aggregation_frequency.
    context.wrap_lr_scheduler(dtrain::lr::warmup_cosine(context.hyperparameter<std::int64_t>("warmup_steps"),
                                                        context.hyperparameter<std::int64_t>("total_steps"),
                                                        /*final=*/0.1));
    context.clip_gradient_norm(1.0);
    context.add_metric("perplexity", perplexity_);
  }

  dtrain::Loader training_loader() override { return context_.loader(read("training")); }
  dtrain::Loader validation_loader() override {
    return context_.loader(read("validation"), {.shuffle = false, .drop_last = false});
  }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const auto scores = model_(batch["features"]);
    const auto loss = F::cross_entropy(scores.flatten(0, 1), batch["target"].flatten());
    context_.backward(loss);  // no weight, because all batches have the same number of tokens
    return {{"loss", loss}};
  }

  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    const auto scores = model_(batch["features"]);
    const auto losses = F::cross_entropy(scores.flatten(0, 1), batch["target"].flatten(),
                                         F::CrossEntropyFuncOptions().reduction(torch::kNone))
                            .view({batch.samples, -1})
                            .mean(1);
    perplexity_->add_losses(losses);
    return {{"loss", losses.mean()}};
  }

  // The model has the final weights here: with optimizations.ema their average.
  std::vector<std::filesystem::path> save_more(const std::filesystem::path& folder) override {
    const auto text = continue_text(model_, prompt_, sample_bytes_, temperature_, /*seed=*/1);
    const auto file = folder / "sample.txt";
    std::ofstream(file, std::ios::binary) << text << '\n';
    std::cout << "the model writes:\n" << for_log(text) << std::endl;  // into the rank's log, which dtrain shows
    return {file};
  }

 private:
  std::shared_ptr<dtrain::data::Dataset> read(const std::string& part) {
    const auto file = context_.resolve(context_.data().at(part).get<std::string>());
    try {
      return dtrain::data::load_tokens(file, dtrain::data::TokenType::kUint16, sizes_.length);
    } catch (const dtrain::DataError& error) {
      throw dtrain::DataError(error.what(),
                              "examples/gpt/prepare.py writes the files that data.training and "
                              "data.validation name");
    }
  }

  static std::string for_log(std::string text) {
    for (char& c : text) {
      if (c != '\n' && c != '\t' && (c < ' ' || c > '~')) c = '?';
    }
    return text;
  }

  dtrain::TrialContext& context_;
  GptSizes sizes_;
  // For the sample at the end. The constructor reads these keys, because a warning names keys that are unread after the
  // first batch.
  std::string prompt_;
  std::int64_t sample_bytes_;
  double temperature_;
  Gpt model_;
  std::shared_ptr<Perplexity> perplexity_ = std::make_shared<Perplexity>();
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<GptTrial>(argc, argv);
}

// Trains the language model of gpt.h on a file of tokens, data-parallel, and samples text at the end. Run it with
//   python3 examples/gpt/prepare.py
//   dtrain launch examples/gpt/gpt.yaml
#include "gpt.h"

#include <fstream>
#include <iostream>

#include <dtrain/data/data_sets.h>

namespace {

namespace F = torch::nn::functional;

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

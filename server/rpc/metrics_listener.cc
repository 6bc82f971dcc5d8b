#include "server/rpc/metrics_listener.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/flag.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "server/rpc/acceptor.h"

namespace stemma::server {
namespace {

// Connections at a time; a client that sends or takes nothing holds one for so long.
constexpr const char *kThreads = "4", *kIdleMs = "5000";

// Asks for the numbers at each read. Thread safety: any.
class AskedNumbers final : public prometheus::Collectable {
 public:
  AskedNumbers(ServerFacts facts, AskNumbersFunction ask, CertificatesFunction certificates)
      : facts_(std::move(facts)), ask_(std::move(ask)), certificates_(std::move(certificates)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    const std::shared_ptr<Answer> answer = Ask();
    const double left_s = answer->give_up_s - RealClock().MonotonicSeconds();
    if (!answer->came.AwaitWithin(absl::Seconds(left_s))) {
      return MetricFamiliesOf(facts_, std::nullopt, certificates_());
    }
    return MetricFamiliesOf(facts_, answer->numbers, certificates_());
  }

 private:
  struct Answer {
    double give_up_s = RealClock().MonotonicSeconds() + absl::ToDoubleSeconds(MetricsListener::kAnswerWithin);
    ServerNumbers numbers;
    Flag came;
  };

  std::shared_ptr<Answer> Ask() const {
    MutexLock lock(&mutex_);
    if (asked_ != nullptr && !asked_->came.is_set()) return asked_;
    asked_ = std::make_shared<Answer>();
    ask_([answer = asked_](ServerNumbers numbers) {
      answer->numbers = std::move(numbers);
      answer->came.Set();
    });
    return asked_;
  }

  const ServerFacts facts_;
  const AskNumbersFunction ask_;
  const CertificatesFunction certificates_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<Answer> asked_ ABSL_GUARDED_BY(mutex_);  // last
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsListener>> MetricsListener::Open(HostPort address, ServerFacts facts,
                                                                       AskNumbersFunction ask,
                                                                       CertificatesFunction certificates) {
  std::unique_ptr<MetricsListener> self(new MetricsListener());
  self->numbers_ = std::make_shared<AskedNumbers>(std::move(facts), std::move(ask), std::move(certificates));
  const std::string asked = address.Text();
  try {
    self->exposer_ = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", asked, "num_threads", kThreads, "request_timeout_ms", kIdleMs, "enable_keep_alive", "no"});
  } catch (const std::exception& error) {
    // The library does not say why: another try to listen there does. Debian builds it without IPv6.
    RETURN_IF_ERROR(Acceptor::Open({.host = address.host, .port = address.port}).status());
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics on ", asked, ", which needs an IPv4 address: ", error.what()));
  }
  self->exposer_->RegisterCollectable(self->numbers_);
  address.port = static_cast<uint16_t>(self->exposer_->GetListeningPorts().front());
  self->address_ = address.Text();
  return self;
}

MetricsListener::~MetricsListener() = default;

}  // namespace stemma::server

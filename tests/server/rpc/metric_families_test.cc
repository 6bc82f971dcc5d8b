// What metrics say of the files of TLS; the rest is held to the calls by tests/e2e/errors/metrics_test.py.
#include "server/rpc/metric_families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

namespace stemma::server {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// The gauges of a server that hangs, by name and the value of their label.
std::map<std::string, double> GaugesOf(const std::optional<CertificateState>& certificates) {
  std::map<std::string, double> gauges;
  for (const prometheus::MetricFamily& family : MetricFamiliesOf({.version = "1"}, std::nullopt, certificates)) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      gauges[family.name + (metric.label.empty() ? "" : " " + metric.label[0].value)] = metric.gauge.value;
    }
  }
  return gauges;
}

TEST(MetricFamiliesTest, AServerThatHangsSaysWhenItsCertificatesEnd) {
  const CertificateState state = {.whole = false,
                                  .cert_ends = absl::FromUnixSeconds(1'900'000'000),
                                  .ca_ends = absl::FromUnixSeconds(2'000'000'000)};
  EXPECT_THAT(GaugesOf(state),
              ElementsAre(Pair("stemma_answers", 0), Pair("stemma_info 1", 1), Pair("stemma_start_time_seconds", 0),
                          Pair("stemma_tls_ends_seconds ca", 2e9), Pair("stemma_tls_ends_seconds cert", 1.9e9),
                          Pair("stemma_tls_files_whole", 0)));
}

TEST(MetricFamiliesTest, AFileThatIsNotThereHasNoEnd) {
  EXPECT_THAT(GaugesOf(CertificateState{.cert_ends = absl::FromUnixSeconds(1'900'000'000)}),
              ElementsAre(Pair("stemma_answers", 0), Pair("stemma_info 1", 1), Pair("stemma_start_time_seconds", 0),
                          Pair("stemma_tls_ends_seconds cert", 1.9e9), Pair("stemma_tls_files_whole", 1)));
  EXPECT_THAT(GaugesOf(std::nullopt),
              ElementsAre(Pair("stemma_answers", 0), Pair("stemma_info 1", 1), Pair("stemma_start_time_seconds", 0)));
}

}  // namespace
}  // namespace stemma::server

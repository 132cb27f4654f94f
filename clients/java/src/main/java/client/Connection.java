package client;

import com.google.gson.Gson;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.rpc.ErrorInfo;
import io.grpc.CallCredentials;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.StatusProto;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;

/** Opens connections to the manager that the environment names, and reads what its errors carry. */
final class Connection {
  static final Metadata.Key<String> REQUEST_ID = Metadata.Key.of("x-request-id", Metadata.ASCII_STRING_MARSHALLER);
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private Connection() {}

  static ManagedChannel open() throws IOException {
    String serviceConfig = Files.readString(Path.of(System.getenv("RETINUE_SERVICE_CONFIG")));
    @SuppressWarnings("unchecked")
    Map<String, ?> retries = new Gson().fromJson(serviceConfig, Map.class);
    return Grpc.newChannelBuilder(
            System.getenv("RETINUE_ENDPOINT"),
            TlsChannelCredentials.newBuilder().trustManager(new File(System.getenv("RETINUE_CA"))).build())
        // Every manager's certificate carries this name, whatever address is dialled.
        .overrideAuthority("manager.retinue")
        .defaultServiceConfig(retries)
        .keepAliveTime(20, TimeUnit.SECONDS)
        .keepAliveTimeout(10, TimeUnit.SECONDS)
        .build();
  }

  /** Adds a token to every call. */
  static CallCredentials bearer(String token) {
    return new CallCredentials() {
      @Override
      public void applyRequestMetadata(RequestInfo info, Executor executor, MetadataApplier applier) {
        Metadata metadata = new Metadata();
        metadata.put(AUTHORIZATION, "Bearer " + token);
        applier.apply(metadata);
      }
    };
  }

  /** Returns the detail of an error that has a type. */
  static <T extends Message> Optional<T> detail(StatusRuntimeException error, Class<T> type) {
    try {
      for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
        if (detail.is(type)) return Optional.of(detail.unpack(type));
      }
    } catch (InvalidProtocolBufferException wrong) {
      throw new IllegalStateException(wrong);
    }
    return Optional.empty();
  }

  /** Returns the word by which programs tell errors apart; docs/reference/errors.md lists them. */
  static String reason(StatusRuntimeException error) {
    return detail(error, ErrorInfo.class).map(ErrorInfo::getReason).orElse("");
  }
}

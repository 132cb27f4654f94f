package client;

import com.google.protobuf.ByteString;
import com.google.rpc.BadRequest;
import io.grpc.Context;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import retinue.manager.v1.AccountServiceGrpc;
import retinue.manager.v1.AttachRequest;
import retinue.manager.v1.AttachResponse;
import retinue.manager.v1.AttachStart;
import retinue.manager.v1.ClusterMode;
import retinue.manager.v1.CodeOpen;
import retinue.manager.v1.CreateSessionRequest;
import retinue.manager.v1.CreateSessionResponse;
import retinue.manager.v1.ExecuteCodeRequest;
import retinue.manager.v1.ExecuteCodeResponse;
import retinue.manager.v1.GetCallerRequest;
import retinue.manager.v1.GetSessionRequest;
import retinue.manager.v1.Kernel;
import retinue.manager.v1.KernelServiceGrpc;
import retinue.manager.v1.KernelSpec;
import retinue.manager.v1.OpenPortRequest;
import retinue.manager.v1.OpenPortResponse;
import retinue.manager.v1.OpenPortStart;
import retinue.manager.v1.RoleSpec;
import retinue.manager.v1.SessionEvent;
import retinue.manager.v1.SessionServiceGrpc;
import retinue.manager.v1.SessionSpec;
import retinue.manager.v1.SessionState;
import retinue.manager.v1.SessionType;
import retinue.manager.v1.StreamLogsRequest;
import retinue.manager.v1.StreamLogsResponse;
import retinue.manager.v1.TerminateSessionRequest;
import retinue.manager.v1.WatchSessionsRequest;
import retinue.manager.v1.WatchSessionsResponse;
import retinue.types.v1.CodeEvent;
import retinue.types.v1.CodeInput;
import retinue.types.v1.CodeRun;
import retinue.types.v1.CommandInput;
import retinue.types.v1.CommandSpec;
import retinue.types.v1.ServicePort;

/** The scenario of all clients: see ../README.md. */
public final class Scenario {
  private final ManagedChannel channel;
  private final SessionServiceGrpc.SessionServiceBlockingStub sessions;
  private final KernelServiceGrpc.KernelServiceBlockingStub kernels;
  private final KernelServiceGrpc.KernelServiceStub streams;

  private Scenario(ManagedChannel channel) {
    this.channel = channel;
    var token = Connection.bearer(System.getenv("RETINUE_TOKEN"));
    sessions = SessionServiceGrpc.newBlockingStub(channel).withCallCredentials(token);
    kernels = KernelServiceGrpc.newBlockingStub(channel).withCallCredentials(token);
    streams = KernelServiceGrpc.newStub(channel).withCallCredentials(token);
  }

  public static void main(String[] arguments) throws Exception {
    ManagedChannel channel = Connection.open();
    try {
      new Scenario(channel).run();
    } finally {
      channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
    System.out.println("scenario: ok");
  }

  private void run() throws InterruptedException {
    var caller = accounts(System.getenv("RETINUE_TOKEN")).getCaller(GetCallerRequest.getDefaultInstance());
    System.out.println("caller: " + caller.getUser().getName());
    refusals();
    CreateSessionResponse created = create();
    String id = created.getSession().getId();
    watchUntilRunning(created);
    readLogs(id);
    attach(id);
    runCode(id);
    openPort(id);
    end(created);
  }

  private AccountServiceGrpc.AccountServiceBlockingStub accounts(String token) {
    return AccountServiceGrpc.newBlockingStub(channel).withCallCredentials(Connection.bearer(token));
  }

  /** Shows what an error carries: a code, a reason, the wrong fields, the id of the request. */
  private void refusals() {
    SessionSpec wrong = SessionSpec.newBuilder()
        .setName("Not A Name").setType(SessionType.SESSION_TYPE_BATCH).setClusterSize(-1).build();
    StatusRuntimeException error = refused(Status.Code.INVALID_ARGUMENT, "INVALID_FIELD",
        () -> sessions.createSession(CreateSessionRequest.newBuilder().setSpec(wrong).build()));
    var violations = Connection.detail(error, BadRequest.class).orElseThrow().getFieldViolationsList();
    violations.forEach(each -> System.out.println("refused: " + each.getField() + " " + each.getDescription()));
    var fields = violations.stream().map(BadRequest.FieldViolation::getField).toList();
    expect(fields.containsAll(List.of("spec.name", "spec.cluster_size")), "both wrong fields", fields);
    expect(error.getTrailers().containsKey(Connection.REQUEST_ID), "a request id in the trailers", error.getTrailers());
    refused(Status.Code.NOT_FOUND, "NOT_FOUND",
        () -> sessions.getSession(GetSessionRequest.newBuilder().setSession("no-such-session").build()));
    refused(Status.Code.UNAUTHENTICATED, "TOKEN_INVALID",
        () -> accounts("rtn_wrong").getCaller(GetCallerRequest.getDefaultInstance()));
  }

  /** Asks for three kernels on two nodes, twice with one request id, which makes one session. */
  private CreateSessionResponse create() {
    String server = "echo hello from $BACKENDAI_CLUSTER_HOST; exec python3 -m http.server 8000 --bind 127.0.0.1";
    CreateSessionRequest request = CreateSessionRequest.newBuilder()
        .setRequestId(UUID.randomUUID().toString())
        .setSpec(SessionSpec.newBuilder()
            .setName("clients-java")
            .setType(SessionType.SESSION_TYPE_INTERACTIVE)
            .setClusterSize(3)
            .setClusterMode(ClusterMode.CLUSTER_MODE_MULTI_NODE)
            .setKernel(KernelSpec.newBuilder().putSlots("cpu", "2").putSlots("mem", "200m"))
            .addRoles(RoleSpec.newBuilder().setRole("main")
                .setKernel(KernelSpec.newBuilder().addAllCommand(List.of("sh", "-c", server))))
            .addServicePorts(ServicePort.newBuilder().setName("web").setProtocol("http").addPorts(8000)))
        .build();
    CreateSessionResponse created = sessions.createSession(request);
    String again = sessions.createSession(request).getSession().getId();
    expect(again.equals(created.getSession().getId()), "one session for one request id", again);
    System.out.println("created: " + again);
    return created;
  }

  /** Gives every change of a session, from its creation on, until `done` or the session has ended. */
  private void watch(CreateSessionResponse created, Predicate<SessionEvent> done) {
    WatchSessionsRequest request = WatchSessionsRequest.newBuilder()
        .setSessionId(created.getSession().getId())
        .setAfter(created.getPosition().toBuilder().setRevision(created.getPosition().getRevision() - 1))
        .setUntilEnded(true)
        .build();
    cancelledAfter(() -> {
      Iterator<WatchSessionsResponse> responses = sessions.watchSessions(request);
      while (responses.hasNext()) {
        for (SessionEvent event : responses.next().getEventsList()) if (done.test(event)) return;
      }
    });
  }

  private void watchUntilRunning(CreateSessionResponse created) {
    List<SessionState> states = new ArrayList<>();
    watch(created, event -> {
      if (!event.hasSessionMoved()) return false;
      states.add(event.getSessionMoved().getToState());
      return event.getSessionMoved().getToState() == SessionState.SESSION_STATE_RUNNING;
    });
    System.out.println("session: " + states);
    expect(states.contains(SessionState.SESSION_STATE_RUNNING), "a running session", states);
    var request = GetSessionRequest.newBuilder().setSession(created.getSession().getId()).build();
    List<Kernel> placed = sessions.getSession(request).getSession().getKernelsList();
    var agents = placed.stream().map(Kernel::getAgent).collect(Collectors.toSet());
    expect(placed.size() == 3 && agents.size() == 2, "three kernels on two nodes", placed);
  }

  private void readLogs(String id) {
    StringBuilder text = new StringBuilder();
    cancelledAfter(() -> {
      Iterator<StreamLogsResponse> pieces =
          kernels.streamLogs(StreamLogsRequest.newBuilder().setSession(id).setFollow(true).build());
      while (text.indexOf("hello from main1\n") < 0) text.append(pieces.next().getData().toStringUtf8());
    });
    System.out.println("logs: " + text.toString().trim());
  }

  /** Runs a command in main1 that reads its input and reaches another kernel. */
  private void attach(String id) {
    AttachStart start = AttachStart.newBuilder()
        .setSession(id)
        .setSpec(CommandSpec.newBuilder()
            .addAllCommand(List.of("sh", "-c", "read line; echo got $line; ssh sub2 hostname; exit 7")))
        .build();
    CommandInput line = CommandInput.newBuilder().setStdin(ByteString.copyFromUtf8("a line\n")).build();
    StringBuilder output = new StringBuilder();
    int exitCode = -1;
    for (AttachResponse response : exchange(streams::attach, List.of(
        AttachRequest.newBuilder().setStart(start).build(),
        AttachRequest.newBuilder().setInput(line).build()))) {
      output.append(response.getOutput().getStdout().toStringUtf8());
      if (response.getOutput().hasExited()) exitCode = response.getOutput().getExited().getExitCode();
    }
    expect(output.toString().equals("got a line\nsub2\n") && exitCode == 7, "output and exit code", output);
    System.out.println("attach: " + output.toString().replace('\n', ' ') + "exit code " + exitCode);
  }

  private void runCode(String id) {
    List<ExecuteCodeRequest> requests = new ArrayList<>();
    requests.add(ExecuteCodeRequest.newBuilder().setOpen(CodeOpen.newBuilder().setSession(id)).build());
    for (String code : List.of("print(sum(range(10)))", "1/0", "6 * 7")) {
      CodeInput run = CodeInput.newBuilder().setRun(CodeRun.newBuilder().setCode(code)).build();
      requests.add(ExecuteCodeRequest.newBuilder().setInput(run).build());
    }
    List<String> seen = new ArrayList<>();
    for (ExecuteCodeResponse response : exchange(streams::executeCode, requests)) {
      for (CodeEvent event : response.getOutput().getEvents().getEventsList()) {
        if (event.hasStdout()) seen.add(event.getStdout().trim());
        if (event.hasMedia()) seen.add(event.getMedia().getForms(0).getData().toStringUtf8());
        if (event.hasFinished()) seen.add(event.getFinished().getStatus().name().replace("CODE_STATUS_", ""));
      }
    }
    expect(seen.equals(List.of("45", "OK", "ERROR", "42", "OK")), "what the code printed and returned", seen);
    System.out.println("code: " + seen);
  }

  /** Speaks HTTP to a service port of the session; its program may need a moment until it listens. */
  private void openPort(String id) throws InterruptedException {
    String page = null;
    while (page == null) {
      try {
        page = get(id, "web");
      } catch (StatusRuntimeException error) {
        if (!Connection.reason(error).equals("PORT_CLOSED")) throw error;
        Thread.sleep(100);
      }
    }
    expect(page.startsWith("HTTP/1.0 200 OK"), "a page", page);
    System.out.println("port: " + page.lines().findFirst().orElseThrow());
    refused(Status.Code.NOT_FOUND, "NOT_FOUND", () -> get(id, "nothing"));
  }

  private String get(String id, String port) {
    var responses = exchange(streams::openPort, List.of(
        OpenPortRequest.newBuilder().setStart(OpenPortStart.newBuilder().setSession(id).setPort(port)).build(),
        OpenPortRequest.newBuilder().setData(ByteString.copyFromUtf8("GET / HTTP/1.0\r\n\r\n")).build()));
    return responses.stream().map(OpenPortResponse::getData).map(ByteString::toStringUtf8).collect(Collectors.joining());
  }

  private void end(CreateSessionResponse created) {
    String id = created.getSession().getId();
    sessions.terminateSession(TerminateSessionRequest.newBuilder().setSession(id).build());
    List<SessionState> states = new ArrayList<>();
    watch(created, event -> {
      if (event.hasSessionMoved()) states.add(event.getSessionMoved().getToState());
      return false;
    });
    SessionState last = states.get(states.size() - 1);
    expect(last == SessionState.SESSION_STATE_TERMINATED, "a terminated session", states);
    System.out.println("session: " + last);
  }

  /** Runs something whose calls are cancelled when it returns. */
  private static void cancelledAfter(Runnable reading) {
    Context.CancellableContext context = Context.current().withCancellation();
    try {
      context.run(reading);
    } finally {
      context.cancel(null);
    }
  }

  /** Sends all requests of a stream, half-closes it and returns the responses. */
  private static <Q, A> List<A> exchange(Function<StreamObserver<A>, StreamObserver<Q>> method, List<Q> requests) {
    List<A> responses = new ArrayList<>();
    CompletableFuture<List<A>> ended = new CompletableFuture<>();
    StreamObserver<Q> sending = method.apply(new StreamObserver<A>() {
      @Override
      public void onNext(A response) {
        responses.add(response);
      }

      @Override
      public void onError(Throwable error) {
        ended.completeExceptionally(error);
      }

      @Override
      public void onCompleted() {
        ended.complete(responses);
      }
    });
    requests.forEach(sending::onNext);
    sending.onCompleted();
    try {
      return ended.orTimeout(60, TimeUnit.SECONDS).join();
    } catch (CompletionException error) {
      throw error.getCause() instanceof StatusRuntimeException refusal ? refusal : error;
    }
  }

  /** Returns the error that a call has to end with. */
  private static StatusRuntimeException refused(Status.Code code, String reason, Runnable call) {
    try {
      call.run();
    } catch (StatusRuntimeException error) {
      expect(error.getStatus().getCode() == code && Connection.reason(error).equals(reason), reason, error);
      return error;
    }
    throw new IllegalStateException("the call was not refused");
  }

  private static void expect(boolean holds, String what, Object found) {
    if (!holds) throw new IllegalStateException("expected " + what + ", found " + found);
  }
}

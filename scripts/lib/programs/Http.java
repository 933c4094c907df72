// An HTTP server and client of Java's, for runtimes.py:
//   java Http.java serve HOST PORT DIR          files of DIR by GET; what comes by POST is sent back; SIGTERM ends it
//   java Http.java get URL SHA256 TIMES         over one connection, if the server lets it
//   java Http.java echo URL BYTES CONNECTIONS   sends so many bytes on each connection at once and wants them back
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;

public class Http {
    static void answer(HttpExchange exchange, Path dir) throws IOException {
        try (exchange) {
            if (exchange.getRequestMethod().equals("POST")) {
                // First all of it: this client reads nothing before it has sent everything.
                byte[] body = exchange.getRequestBody().readAllBytes();
                exchange.sendResponseHeaders(200, body.length);
                exchange.getResponseBody().write(body);
                return;
            }
            Path file = dir.resolve(Path.of(exchange.getRequestURI().getPath()).getFileName());
            exchange.sendResponseHeaders(200, Files.size(file));
            try (OutputStream out = exchange.getResponseBody()) {
                Files.copy(file, out);
            }
        }
    }

    static void serve(String host, int port, Path dir) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(host, port), 128);
        server.createContext("/", exchange -> answer(exchange, dir));
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
    }

    static HttpClient client() {
        return HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    }

    static void get(URI url, String wanted, int times) throws Exception {
        HttpClient client = client();
        for (int i = 0; i < times; i++) {
            HttpResponse<InputStream> got = client.send(HttpRequest.newBuilder(url).build(), HttpResponse.BodyHandlers.ofInputStream());
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            try (InputStream in = got.body()) {
                byte[] piece = new byte[1 << 16];
                for (int n; (n = in.read(piece)) > 0;) {
                    digest.update(piece, 0, n);
                }
            }
            String found = HexFormat.of().formatHex(digest.digest());
            System.out.println(found);
            if (got.statusCode() != 200 || !found.equals(wanted)) {
                throw new IOException("other bytes arrived than were sent, status " + got.statusCode());
            }
        }
    }

    static void echo(URI url, int bytes, int connections) throws Exception {
        HttpClient client = client();
        List<byte[]> sent = new ArrayList<>();
        List<CompletableFuture<HttpResponse<byte[]>>> answers = new ArrayList<>();
        for (int i = 0; i < connections; i++) {
            byte[] body = new byte[bytes];
            new Random(i).nextBytes(body);
            sent.add(body);
            answers.add(client.sendAsync(HttpRequest.newBuilder(url).POST(HttpRequest.BodyPublishers.ofByteArray(body)).build(),
                                         HttpResponse.BodyHandlers.ofByteArray()));
        }
        for (int i = 0; i < connections; i++) {
            byte[] body = answers.get(i).get().body();
            System.out.println(Arrays.hashCode(body));
            if (!Arrays.equals(body, sent.get(i))) {
                throw new IOException("other bytes came back than were sent");
            }
        }
    }

    public static void main(String[] words) throws Exception {
        switch (words[0]) {
            case "serve" -> serve(words[1], Integer.parseInt(words[2]), Path.of(words[3]));
            case "get" -> get(URI.create(words[1]), words[2], Integer.parseInt(words[3]));
            case "echo" -> echo(URI.create(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            default -> throw new IllegalArgumentException(words[0]);
        }
    }
}

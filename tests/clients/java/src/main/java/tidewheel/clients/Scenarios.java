package tidewheel.clients;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Apache RocketMQ's Java client, told over stdin what to do, a JSON line each:
 *
 * <pre>{"id": 7, "verb": "receive", "arguments": {...}}   ->   {"id": 7, "told": ...} or {"id": 7, "refused": "..."}</pre>
 *
 * Answers come when they are there, in any order, so a receive may wait while a send goes on. The verbs are those
 * of tests/clients/official.py.
 */
public final class Scenarios {
    private static final Gson GSON = new Gson();

    private Scenarios() {
    }

    /** Plays until stdin ends. Push consumers are not shut down: they end with the process. */
    public static void main(String[] arguments) throws Exception {
        System.setProperty("user.home", System.getenv("HOME"));  // the library logs below it
        Verbs verbs = new Verbs(arguments[0]);
        tell(0, "told", "started");
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject asked = JsonParser.parseString(line).getAsJsonObject();
            threads.execute(() -> answer(verbs, asked));
        }
        verbs.close();
        System.exit(0);
    }

    private static void answer(Verbs verbs, JsonObject asked) {
        int id = asked.get("id").getAsInt();
        try {
            tell(id, "told", verbs.carryOut(asked.get("verb").getAsString(), asked.getAsJsonObject("arguments")));
        } catch (Throwable refusal) {
            tell(id, "refused", String.valueOf(refusal.getMessage()));
        }
    }

    private static synchronized void tell(int id, String how, Object what) {
        Map<String, Object> answer = new HashMap<>(Map.of("id", id));
        answer.put(how, what == null ? "" : what);
        byte[] line = (GSON.toJson(answer) + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(line, 0, line.length);
        System.out.flush();
    }
}

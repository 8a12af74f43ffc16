package tidewheel.rocketmq;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * Judges SQL filters with the genuine filter code. The file holds, in base64, the stored properties of one message on
 * its first line and an expression on each other line; one JSON object a line says what each is.
 */
public final class JudgeFilters {
    private JudgeFilters() {
    }

    public static void main(String[] arguments) throws Exception {
        List<String> lines = Files.readAllLines(Path.of(arguments[0]));
        Map<String, String> properties = MessageDecoder.string2messageProperties(text(lines.get(0)));
        for (String line : lines.subList(1, lines.size())) {
            System.out.println("{\"truth\": \"" + judged(text(line), properties) + "\"}");
        }
    }

    private static String judged(String expression, Map<String, String> properties) {
        try {
            Object truth = SelectorParser.parse(expression).evaluate(new Properties(properties));
            return truth == null ? "UNKNOWN" : truth.toString().toUpperCase();
        } catch (MQFilterException error) {
            return "REFUSED";
        } catch (Exception error) {
            return "ERROR";
        }
    }

    private static String text(String line) {
        return new String(Base64.getDecoder().decode(line), StandardCharsets.UTF_8);
    }

    private static final class Properties implements EvaluationContext {
        private final Map<String, String> properties;

        Properties(Map<String, String> properties) {
            this.properties = properties;
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return Map.copyOf(properties);
        }
    }
}
